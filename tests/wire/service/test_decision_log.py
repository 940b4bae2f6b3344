from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from dunlin.effects import Address, Effect, Message, Send
from dunlin.messages.dispatch import Cancel, Place
from dunlin.messages.fleet import Reason, Reasons
from dunlin.messages.types import Why, i32
from dunlin.runtime.core_host import CoreHost
from dunlin.wire.codec import encode
from dunlin.wire.service import decision_log
from dunlin.wire.service.decision_log import DecisionStreamer

OWN = Address("dispatcher", "d", 1)
INSTANCE = Address("instance", "i", 2)
MONITOR = Address("monitor", "m", 3)
WHY = Why("p")


@dataclass(frozen=True)
class Wordless:
    """A decision that the wire does not know."""

    why: Why = WHY


class Repeat:
    """Sends whatever it is given on to the instance."""

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        return [Send(INSTANCE, message)] if sender == OWN else ()


@dataclass
class Box:
    """An outlet that takes everything."""

    sent: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> bool:
        self.sent.append(message)
        return True

    def close(self, reason: str) -> None:
        pass


def no_timers(delay_s: float, call: Callable[[], None]) -> None:
    raise AssertionError("nobody sets timers here")


def host_of(decisions: Sequence[Message], kept: int = 100) -> CoreHost:
    """A host that has sent these messages at second 7."""
    host = CoreHost(Repeat(), OWN, lambda: 7.0, later=no_timers, reasons_kept=kept)
    host.attach(INSTANCE, Box())
    for message in decisions:
        host.deliver(OWN, message)
    return host


def cancel(number: int) -> Cancel:
    return Cancel(number, 1, WHY)


def reason(message: Message) -> Reason:
    return Reason(7.0, OWN, INSTANCE, type(message).__name__, encode(message))


def test_a_batch_goes_to_every_monitor_once() -> None:
    host = host_of([cancel(1), cancel(2)])
    one, two = Box(), Box()
    host.attach(MONITOR, one)
    host.attach(Address("monitor", "other", 4), two)
    pump = DecisionStreamer(host)
    pump.flush()
    pump.flush()
    assert one.sent == two.sent == [Reasons((reason(cancel(1)), reason(cancel(2))))]


def test_without_a_monitor_the_ring_keeps_them_for_the_next_one() -> None:
    host = host_of([cancel(number) for number in range(5)], kept=3)
    pump = DecisionStreamer(host)
    pump.flush()
    monitor = Box()
    host.attach(MONITOR, monitor)
    pump.flush()
    assert monitor.sent == [Reasons(tuple(reason(cancel(number)) for number in (2, 3, 4)), lost=2)]


def test_a_batch_is_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "_BATCH", 2)
    host = host_of([cancel(number) for number in range(3)])
    monitor = Box()
    host.attach(MONITOR, monitor)
    pump = DecisionStreamer(host)
    pump.flush()
    pump.flush()
    assert monitor.sent == [
        Reasons((reason(cancel(0)), reason(cancel(1)))),
        Reasons((reason(cancel(2)),)),
    ]


def test_a_decision_too_large_for_the_batch_is_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "_BATCH_BYTES", 200)
    large = Place(1, 1, i32(range(100)), 100, 1, why=WHY)
    host = host_of([cancel(1), large, cancel(2)])
    monitor = Box()
    host.attach(MONITOR, monitor)
    DecisionStreamer(host).flush()
    assert monitor.sent == [Reasons((reason(cancel(1)), reason(cancel(2))), lost=1)]


def test_what_fits_no_more_into_a_batch_comes_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the prompts of a busy dispatcher whose monitor was away."""
    places = [Place(number, 1, i32(range(100)), 100, 1, why=WHY) for number in range(3)]
    monkeypatch.setattr(decision_log, "_BATCH_BYTES", 2 * len(encode(places[2])))
    monkeypatch.setattr(decision_log, "_BATCH", 3)
    host = host_of([*places, cancel(1), cancel(2)])
    monitor = Box()
    host.attach(MONITOR, monitor)
    pump = DecisionStreamer(host)
    for _ in range(3):
        pump.flush()
    assert monitor.sent == [
        Reasons((reason(places[0]), reason(places[1]))),
        Reasons((reason(places[2]), reason(cancel(1)), reason(cancel(2)))),
    ]


def test_what_the_wire_does_not_know_is_counted_and_hides_nothing() -> None:
    host = host_of([Wordless(), cancel(1)])
    monitor = Box()
    host.attach(MONITOR, monitor)
    DecisionStreamer(host).flush()
    assert monitor.sent == [Reasons((reason(cancel(1)),), lost=1)]
