"""Planted states that break I8 are found: slots that are lost, kept to the end, or written by two."""

from types import SimpleNamespace
from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.engine import (
    Close,
    Discard,
    EngineExited,
    Interrupted,
    Resume,
    Step,
    StepDone,
    StopEngine,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import Region, TransferKind, TransferStatus, Why, f32, i8, i32, i64
from simulator.campaign.invariants.slots import FULL_EVERY, RowWriteWatcher, SlotWatcher
from simulator.campaign.violation import Violation
from tests.simulator.campaign.campaign_bench import Campaign


def broken(kind: str, words: str) -> Any:
    return pytest.raises(Violation, match=f"^{kind} at .*{words}")


def watching() -> tuple[Campaign, SlotWatcher]:
    campaign = Campaign()
    return campaign, SlotWatcher(campaign.cluster, campaign.clients, campaign.faults)


def test_a_lost_slot_is_found_after_the_next_event_of_its_instance() -> None:
    campaign, watcher = watching()
    one, other = campaign.cluster.of_role("instance")
    campaign.cluster.core(one).slot_table.free -= 1
    watcher.after(campaign.event(one, other, StopEngine(Why(""))))
    with broken("I8", "instance-0.*free: 255"):
        watcher.after(campaign.event(other, one, StopEngine(Why(""))))


def test_slots_that_add_up_but_overlap_are_found_by_a_full_check() -> None:
    campaign, watcher = watching()
    instance = campaign.address("instance")
    event = campaign.event(instance, instance, StopEngine(Why("")))
    campaign.cluster.core(instance).slot_table._free = [(0, 200), (100, 56)]
    for _ in range(FULL_EVERY - 1):
        watcher.after(event)
    with broken("I8", "instance-0.*Error: "):
        watcher.after(event)


@pytest.mark.parametrize(
    ("role", "part"), [("instance", "lifecycle.kv_cache"), ("dispatcher", "journal"), ("kvstore", "catalog")]
)
def test_an_audit_checks_each_role_that_holds_something(role: str, part: str) -> None:
    campaign, watcher = watching()
    watcher.audit()

    def check_integrity() -> None:
        raise AssertionError("3 counted, 4 are")

    held = SimpleNamespace(check_integrity=check_integrity)
    for name in reversed(part.split(".")[1:]):
        held = SimpleNamespace(**{name: held})
    campaign.plant(campaign.address(role), **{part.split(".")[0]: held})
    with broken("I8", f"{role}-0.*: AssertionError: 3 counted, 4 are"):
        watcher.audit()


def test_events_of_processes_that_are_gone_or_hold_nothing_are_passed_over() -> None:
    campaign, watcher = watching()
    for to in (campaign.address("monitor"), Address("instance", "gone", 99)):
        watcher.after(campaign.event(to, to, StopEngine(Why(""))))


def test_in_the_end_all_is_free() -> None:
    campaign, watcher = watching()
    campaign.client(max_tokens=5)
    campaign.run(2.0)
    watcher.at_end()


def at_end(campaign: Campaign, watcher: SlotWatcher, free: int = 256, cached: int = 0, sequences: int = 0) -> None:
    instances: Any = campaign.cluster.instances
    instances["instance-0"] = SimpleNamespace(
        address="instance-0",
        slot_table=SimpleNamespace(capacity=256, free=free),
        lifecycle=SimpleNamespace(kv_cache=SimpleNamespace(cached_slots=cached)),
        sequences=["a"] * sequences,
    )
    watcher.at_end()


def test_what_an_instance_keeps_to_the_end_breaks_i8_or_i12() -> None:
    campaign, watcher = watching()
    at_end(campaign, watcher, free=200, cached=56)
    with broken("I8", "instance-0 keeps 6 slots without an owner"):
        at_end(campaign, watcher, free=200, cached=50)
    with broken("I12", r"instance-0 keeps \['a', 'a'\]"):
        at_end(campaign, watcher, sequences=2)


def test_what_a_dispatcher_or_a_kvstore_keeps_to_the_end_breaks_i12_or_i8() -> None:
    campaign, watcher = watching()
    dispatchers: Any = campaign.cluster.dispatchers
    before = dispatchers["dispatcher-0"]
    dispatchers["dispatcher-0"] = SimpleNamespace(address="dispatcher-0", journal=[1, 2, 3])
    with broken("I12", "dispatcher-0 keeps 3 requests"):
        watcher.at_end()
    dispatchers["dispatcher-0"] = before
    campaign.plant(campaign.address("kvstore"), catalog=[1, 2])
    with broken("I8", "kvstore-0.* keeps 2 regions without an owner"):
        watcher.at_end()


# --- one writer per slot ---

ME, ENGINE = Address("instance", "i", 1), Address("engine", "i")


def step(number: int, sequence: int, first: int, length: int = 4) -> Step:
    columns = i64([sequence]), i64([0]), i64([length]), i8([1]), i32([0]), i64([first]), i64([length])
    return Step(number, *columns)


def step_done(number: int) -> StepDone:
    return StepDone(number, i64(), i32(), f32(), i8())


def move(first: int, kind: TransferKind = TransferKind.HOST_TO_SLAB) -> Transfer:
    return Transfer(1, kind, 9, Region(0, 2, 0, 2), i64([first]), i64([2]))


def tell(*messages: object, sender: Address = ME) -> None:
    """Messages of an instance to its engine, or an engine's answers to it."""
    campaign = Campaign()
    watcher = RowWriteWatcher(campaign.cluster, campaign.clients, campaign.faults)
    for message in messages:
        answers = isinstance(message, StepDone | EngineExited | Interrupted | TransferDone | Unsupported)
        watcher.before(campaign.event(*((ENGINE, ME) if answers else (sender, ENGINE)), message))


def test_slots_of_an_outstanding_step_may_be_given_to_the_same_sequence_and_after_it_to_any() -> None:
    tell(step(1, 7, 100), step(2, 7, 102), step(3, 8, 106))
    tell(step(1, 7, 100), step_done(1), step(2, 8, 100), step_done(2), move(101))
    tell(step(1, 7, 100), EngineExited(0, 9), step(1, 8, 100))
    tell(step(1, 7, 100), move(104), move(100, TransferKind.SLAB_TO_HOST))


@pytest.mark.parametrize("second", [step(2, 8, 103), step(2, 8, 97, 4), move(99), move(103)])
def test_slots_of_an_outstanding_step_given_to_another_break_i8(second: Any) -> None:
    with broken("I8", "slot 10[03] is sequence 7's in outstanding step 1, and given to another by "):
        tell(step(1, 7, 100), second)


def test_slots_that_a_copy_writes_given_to_a_step_break_i8() -> None:
    tell(move(100), step(1, 7, 102), TransferDone(1, TransferStatus.FAILED), step(2, 7, 100))
    tell(move(100), Unsupported("Transfer", ticket=1), step(1, 7, 100))
    tell(move(100), EngineExited(0, 9), step(1, 7, 100))
    tell(move(100, TransferKind.SLAB_TO_HOST), step(1, 7, 100))
    with broken("I8", "slot 101 is written by move 1, and given to a step by "):
        tell(move(100), TransferDone(2, TransferStatus.OK), step(1, 9, 101))


def test_engines_have_slots_of_their_own() -> None:
    campaign = Campaign()
    watcher = RowWriteWatcher(campaign.cluster, campaign.clients, campaign.faults)
    for index in range(2):
        watcher.before(
            campaign.event(Address("instance", f"{index}"), Address("engine", f"{index}"), step(1, index, 0))
        )


def left(step: int, sequence: int, parked: int) -> Interrupted:
    return Interrupted(i64([sequence]), 1, i64([step]), i32([1]), i32([0]), i8([parked]))


def test_slots_of_a_row_that_left_may_be_given_to_any_and_of_a_parked_one_once_it_is_forgotten() -> None:
    tell(step(1, 7, 100), left(1, 7, parked=0), step(2, 8, 100))
    tell(step(1, 7, 100), left(1, 7, parked=1), Discard(i64([7])), step(2, 8, 100))
    tell(step(1, 7, 100), left(1, 7, parked=1), Close(7), move(100))
    tell(step(1, 7, 100), left(1, 7, parked=1), Resume(2, i64([7])), step_done(2), step(3, 8, 100))
    tell(step(1, 7, 100), Unsupported("Step", step=1), step(2, 8, 100))
    tell(step(1, 7, 100), Close(7), left(1, 7, parked=1), step(2, 8, 100))


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ((left(1, 7, 1), step(2, 8, 103)), "slot 103 is sequence 7's in a parked row, and given"),
        ((left(1, 7, 1), step_done(1), move(100)), "slot 100 is sequence 7's in a parked row, and given"),
        ((left(1, 7, 1), Discard(i64([8])), step(2, 8, 103)), "in a parked row"),
        ((left(1, 7, 1), Resume(2, i64([7])), step(3, 8, 103)), "in outstanding step 2, and given"),
    ],
)
def test_slots_of_a_parked_row_given_to_another_break_i8(messages: tuple[object, ...], words: str) -> None:
    with broken("I8", words):
        tell(step(1, 7, 100), *messages)
