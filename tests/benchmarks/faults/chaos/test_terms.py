"""I3 from recorded terms: an epoch that two lead, or that etcd gave to another, is found."""

from benchmarks.faults.chaos.terms import RecordedTerms
from dunlin.effects import Address
from dunlin.membership.values import KeyValue
from dunlin.membership.watch import DeletedEvent, PutEvent, ResetEvent
from dunlin.messages.fleet import FleetStatus, ManagerReport, MemberStatus


def key(epoch: int, owner: str) -> KeyValue:
    return KeyValue(f"/e/{epoch}", owner.encode(), epoch, epoch)


def led(name: str, epoch: int, incarnation: int = 1) -> FleetStatus:
    manager = Address("global_manager", name, incarnation)
    return FleetStatus(1, (MemberStatus(manager, manager=ManagerReport(epoch=epoch)),))


def watched() -> RecordedTerms:
    terms = RecordedTerms()
    terms.on_event(ResetEvent(4, (key(3, "a"),)))
    terms.on_event(PutEvent(key(7, "b")))
    terms.on_event(DeletedEvent("/e/3", 8))
    return terms


def test_each_epoch_led_by_its_owner_is_right() -> None:
    terms = watched()
    for status in (led("a", 3), led("a", 3), led("b", 7), led("a", 0)):
        terms.on_status(status)
    assert terms.complaints() == []
    assert set(terms.led) == {3, 7}


def test_an_epoch_that_is_anothers_is_found() -> None:
    terms = watched()
    terms.on_status(led("a", 7))
    assert terms.complaints() == ["I3: a leads epoch 7, which is b's"]


def test_an_epoch_of_two_processes_is_found_though_they_have_one_name() -> None:
    terms = watched()
    terms.on_status(led("b", 7, incarnation=1))
    terms.on_status(led("b", 7, incarnation=2))
    assert terms.complaints() == ["I3: epoch 7 is led by b#1 and b#2"]


def test_an_epoch_that_etcd_never_gave_is_found_unless_the_watch_missed_some() -> None:
    terms = watched()
    terms.on_status(led("a", 9))
    assert terms.complaints() == ["I3: a#1 leads epoch 9, which etcd gave to none"]
    terms.on_event(ResetEvent(12, ()))
    assert terms.complaints() == []
