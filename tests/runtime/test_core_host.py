import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send, SendEach
from dunlin.messages.types import Why
from dunlin.runtime.core_host import CoreHost, SentDecision, wall_clock

OWN = Address("instance", "i", 3)
PEER = Address("dispatcher", "d", 7)
OTHER = Address("monitor", "m", 9)


@dataclass(frozen=True)
class Note:
    """A message without a reason."""

    text: str


@dataclass(frozen=True)
class Choice:
    """A message that may carry a reason."""

    text: str
    why: Why | None = None


@dataclass
class FakeLoop:
    """Time that moves only when told; timers fire in order of time, then of setting."""

    now_s: float = 100.0
    timers: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    set_count: int = 0

    def clock(self) -> float:
        return self.now_s

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.set_count += 1
        heapq.heappush(self.timers, (self.now_s + delay_s, self.set_count, call))

    def advance(self, to_s: float) -> None:
        while self.timers and self.timers[0][0] <= to_s:
            self.now_s, _, call = heapq.heappop(self.timers)
            call()
        self.now_s = to_s


@dataclass
class ScriptCore:
    """Records what it receives and answers by `script`."""

    script: Callable[[Address, Message], Sequence[Effect]] = lambda sender, message: ()
    heard: list[tuple[float, Address, Message]] = field(default_factory=list)

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        self.heard.append((now_s, sender, message))
        return self.script(sender, message)

    def messages(self) -> list[tuple[Address, Message]]:
        return [(sender, message) for _, sender, message in self.heard]


@dataclass
class FakeOutlet:
    """Holds `room` messages; `on_send` runs inside `send`."""

    room: int = 1_000
    sent: list[Message] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    on_send: Callable[[Message], None] = lambda message: None

    def send(self, message: Message) -> bool:
        if len(self.sent) >= self.room:
            return False
        self.sent.append(message)
        self.on_send(message)
        return True

    def close(self, reason: str) -> None:
        self.closed.append(reason)


def fail(error: Exception) -> None:
    raise AssertionError("the host met an error") from error


def make_host(
    core: ScriptCore, loop: FakeLoop, on_crash: Callable[[Exception], None] = fail, reasons_kept: int = 8
) -> CoreHost:
    return CoreHost(core, OWN, loop.clock, later=loop.later, on_crash=on_crash, reasons_kept=reasons_kept)


def test_a_send_reaches_the_outlet_of_its_address_and_no_other() -> None:
    core = ScriptCore(lambda sender, message: [Send(PEER, Note("to d"))] if message == Note("go") else ())
    host = make_host(core, FakeLoop())
    peer, other = FakeOutlet(), FakeOutlet()
    host.attach(PEER, peer)
    host.attach(OTHER, other)
    host.deliver(OTHER, Note("go"))
    assert peer.sent == [Note("to d")]
    assert other.sent == []
    assert core.messages() == [(PEER, Joined()), (OTHER, Joined()), (OTHER, Note("go"))]


def test_each_of_many_readers_gets_its_own_and_one_that_left_is_counted() -> None:
    each = SendEach([PEER, OWN, OTHER], [Note("d"), Note("lost"), Note("m")])
    host = make_host(ScriptCore(lambda sender, message: [each] if message == Note("go") else ()), FakeLoop())
    peer, other = FakeOutlet(), FakeOutlet()
    host.attach(PEER, peer)
    host.attach(OTHER, other)
    host.deliver(OTHER, Note("go"))
    assert (peer.sent, other.sent, host.undeliverable) == ([Note("d")], [Note("m")], 1)


def test_a_timer_comes_back_at_its_time_from_the_own_address() -> None:
    core = ScriptCore(lambda sender, message: [After(0.25, Note("tick"))] if message == Note("go") else ())
    loop = FakeLoop()
    host = make_host(core, loop)
    host.deliver(PEER, Note("go"))
    loop.advance(100.2)
    assert core.heard == [(100.0, PEER, Note("go"))]
    loop.advance(101.0)
    assert core.heard[1:] == [(100.25, OWN, Note("tick"))]


def test_effects_are_carried_out_in_order_and_a_delivery_from_an_outlet_waits_for_them() -> None:
    log: list[str] = []

    def script(sender: Address, message: Message) -> Sequence[Effect]:
        log.append(f"core {message}")
        return [Send(PEER, Note("one")), Send(PEER, Note("two"))] if message == Note("go") else ()

    core = ScriptCore(script)
    host = make_host(core, FakeLoop())

    def echo(message: Message) -> None:
        log.append(f"out {message}")
        host.deliver(PEER, Choice("echo"))

    host.attach(PEER, FakeOutlet(on_send=echo))
    log.clear()
    host.deliver(OTHER, Note("go"))
    assert log == [
        f"core {Note('go')}",
        f"out {Note('one')}",
        f"out {Note('two')}",
        f"core {Choice('echo')}",
        f"core {Choice('echo')}",
    ]


def test_a_send_without_a_stream_is_counted_and_not_recorded() -> None:
    core = ScriptCore(lambda sender, message: [Send(PEER, Choice("lost", Why("p")))])
    host = make_host(core, FakeLoop())
    host.deliver(OTHER, Note("go"))
    assert host.undeliverable == 1
    assert host.drain(10) == ([], 0)


def test_a_full_outlet_is_closed_and_gone_comes_once() -> None:
    def script(sender: Address, message: Message) -> Sequence[Effect]:
        return [Send(PEER, Choice(str(n), Why("p"))) for n in range(3)] if message == Note("go") else ()

    core = ScriptCore(script)
    host = make_host(core, FakeLoop())
    outlet = FakeOutlet(room=1)
    host.attach(PEER, outlet)
    host.deliver(OTHER, Note("go"))
    host.detach(PEER, "the stream ended", outlet)  # what the stream says when it notices
    assert outlet.sent == [Choice("0", Why("p"))]
    assert outlet.closed == ["queue full"]
    assert core.messages() == [(PEER, Joined()), (OTHER, Note("go")), (PEER, Gone("queue full"))]
    assert (host.overflowed, host.undeliverable) == (1, 1)
    assert [decision.message for decision in host.drain(10)[0]] == [Choice("0", Why("p"))]


def test_a_second_outlet_replaces_the_first_between_one_gone_and_one_joined() -> None:
    core = ScriptCore()
    host = make_host(core, FakeLoop())
    first, second = FakeOutlet(), FakeOutlet()
    host.attach(PEER, first)
    host.attach(PEER, second)
    host.detach(PEER, "late word of the first", first)
    assert [message for _, message in core.messages()] == [Joined(), Gone("replaced by a newer connection"), Joined()]
    assert len(first.closed) == 1
    assert second.closed == []
    assert host.send(PEER, Note("still there"))
    assert second.sent == [Note("still there")]


def test_what_is_said_before_joined_is_heard_is_not_sent() -> None:
    core = ScriptCore(lambda sender, message: [Send(PEER, Note("late"))] if isinstance(message, Gone) else [])
    host = make_host(core, FakeLoop())
    first, second = FakeOutlet(), FakeOutlet()
    host.attach(PEER, first)
    host.attach(PEER, second)
    assert (first.sent, second.sent, host.undeliverable) == ([], [], 1)


def test_peers_are_told_by_role_in_the_order_of_joining() -> None:
    host = make_host(ScriptCore(), FakeLoop())
    late, early = Address("monitor", "a", 20), Address("monitor", "b", 10)
    for peer in (early, PEER, late):
        host.attach(peer, FakeOutlet())
    assert host.peers("monitor") == [early, late]
    host.detach(early, "left")
    assert host.peers("monitor") == [late]


def test_only_messages_with_a_reason_are_recorded_with_time_and_receiver() -> None:
    chosen = Choice("b", Why("p"))

    def script(sender: Address, message: Message) -> Sequence[Effect]:
        return [Send(PEER, Choice("a")), Send(PEER, chosen), Send(PEER, Note("c"))] if message == Note("go") else ()

    loop = FakeLoop()
    host = make_host(ScriptCore(script), loop)
    host.attach(PEER, FakeOutlet())
    loop.advance(103.5)
    host.deliver(OTHER, Note("go"))
    assert host.drain(10) == ([SentDecision(103.5, OWN, PEER, chosen)], 0)
    assert host.drain(10) == ([], 0)


def test_the_ring_keeps_the_newest_and_counts_the_lost_once() -> None:
    def script(sender: Address, message: Message) -> Sequence[Effect]:
        return [Send(PEER, Choice(str(n), Why("p"))) for n in range(5)] if message == Note("go") else ()

    host = make_host(ScriptCore(script), FakeLoop(), reasons_kept=3)
    host.attach(PEER, FakeOutlet())
    host.deliver(OTHER, Note("go"))
    first, lost = host.drain(2)
    rest, lost_again = host.drain(2)
    assert [decision.message for decision in first + rest] == [Choice(n, Why("p")) for n in "234"]
    assert (lost, lost_again) == (2, 0)


@pytest.mark.parametrize("where", ["core", "outlet"])
def test_an_error_is_handed_to_the_crash_hook_and_never_swallowed(where: str) -> None:
    errors: list[Exception] = []
    broken = ValueError("a mistake")

    def script(sender: Address, message: Message) -> Sequence[Effect]:
        if message == Note("go") and where == "core":
            raise broken
        return [Send(PEER, Note("x"))] if message == Note("go") else ()

    def refuse(message: Message) -> None:
        raise broken

    host = make_host(ScriptCore(script), FakeLoop(), on_crash=errors.append)
    host.attach(PEER, FakeOutlet(on_send=refuse))
    host.deliver(OTHER, Note("go"))
    assert errors == [broken]


def test_a_closed_host_closes_its_outlets_and_tells_the_core_nothing_more() -> None:
    core = ScriptCore(lambda sender, message: [After(1.0, Note("tick"))] if message == Note("go") else ())
    loop = FakeLoop()
    host = make_host(core, loop)
    outlet, late = FakeOutlet(), FakeOutlet()
    host.attach(PEER, outlet)
    host.deliver(OTHER, Note("go"))
    host.close()
    heard = core.messages()
    loop.advance(110.0)
    host.deliver(OTHER, Note("late"))
    host.attach(OTHER, late)
    assert core.messages() == heard
    assert outlet.closed == late.closed == ["stopping"]
    assert host.peers("monitor") == []


def test_what_waits_when_the_host_is_closed_is_never_heard() -> None:
    core = ScriptCore(lambda sender, message: [Send(PEER, Note("out"))] if message == Note("go") else ())
    host = make_host(core, FakeLoop())

    def close(message: Message) -> None:
        host.deliver(OTHER, Note("waiting"))
        host.close()

    host.attach(PEER, FakeOutlet(on_send=close))
    host.deliver(OTHER, Note("go"))
    assert core.messages() == [(PEER, Joined()), (OTHER, Note("go"))]


def test_a_failed_task_crashes_and_a_cancelled_one_does_not() -> None:
    errors: list[Exception] = []

    async def scenario() -> None:
        host = make_host(ScriptCore(), FakeLoop(), on_crash=errors.append)

        async def broken() -> None:
            raise ValueError("a mistake")

        tasks = [asyncio.create_task(broken()), asyncio.create_task(asyncio.sleep(60))]
        for task in tasks:
            task.add_done_callback(host.crash_on_error)
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert [str(error) for error in errors] == ["a mistake"]


def test_the_wall_clock_starts_at_the_walls_time_and_ignores_its_later_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    wall_s, monotonic_s = 1_000.0, 5.0
    monkeypatch.setattr(time, "time", lambda: wall_s)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic_s)
    clock = wall_clock()
    assert clock() == 1_000.0
    wall_s, monotonic_s = 10.0, 7.5
    assert clock() == 1_002.5
