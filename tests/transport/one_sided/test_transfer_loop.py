"""The thread around the machines, and the real library where it is installed: between two processes over TCP."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import xxhash

from dunlin.kv.region_identity import signed_digest
from dunlin.messages.exchange import TransferAgent
from dunlin.messages.types import Priority, Region
from dunlin.transport.one_sided.agent import AgentError
from dunlin.transport.one_sided.nixl_agent import is_installed, open_nixl_agent
from dunlin.transport.one_sided.outbound import OneSidedSend
from dunlin.transport.one_sided.staging import StagingLayout
from dunlin.transport.one_sided.transfer_loop import TransferLoop
from dunlin.transport.payload import RegionHeader
from tests.transport.fake_agent import FakeAgent, Hub
from tests.transport.told import Told

needs_nixl = pytest.mark.skipif(not is_installed(), reason="NIXL (extra `nodes`) is not installed")

ROOM = 8 << 20
CUT = StagingLayout(lanes=2, depth=3, chunk_bytes=1 << 18)
SPAWN = multiprocessing.get_context("spawn")


class Side:
    """A courier with a tier."""

    def __init__(self, agent: Any, seed: int, **settings: Any) -> None:
        self.room = bytearray(random.Random(seed).randbytes(ROOM))
        self.sent, self.received = Told(), Told()
        self.courier = TransferLoop(memoryview(self.room), agent, self.received, self.sent, **settings)

    def payload(self, length: int, offset: int = 0) -> RegionHeader:
        plain = RegionHeader(b"", 3, 1, Region(0, 2, 16, 64), "float32", b"chain", length, 0)
        content = bytes(self.room[offset : offset + length])
        return replace(plain, checksum=signed_digest(xxhash.xxh3_64_intdigest(plain.identity + content)))


@contextmanager
def fakes(**settings: Any) -> Iterator[tuple[Side, Side]]:
    hub = Hub()
    sides = [Side(FakeAgent(hub, name, CUT), seed, **settings) for seed, name in enumerate("ab")]
    try:
        yield sides[0], sides[1]
    finally:
        for side in sides:
            side.courier.close()


def push(source: Side, target: Side, length: int, at: int = 0, ticket: int = 1) -> bytes:
    payload = source.payload(length)
    token = target.courier.expect(payload, at, source.courier.descriptor)
    what = OneSidedSend(ticket, target.courier.descriptor, replace(payload, token=token), 0)
    assert source.courier.submit(what, Priority.KV)
    return token


def test_the_thread_carries_and_tells() -> None:
    with fakes() as (source, target):
        push(source, target, 3 << 20, at=4 << 20)
        assert source.sent.wait(1) == [(1, "")]
        assert target.received.wait(1) == [(3, 1, "")]
        assert target.room[4 << 20 : 7 << 20] == source.room[: 3 << 20]


def test_what_lies_outside_the_tier_and_what_is_too_much_is_refused() -> None:
    with fakes(most_waiting=3) as (source, target):
        with pytest.raises(ValueError, match="of a tier of"):
            target.courier.expect(source.payload(100), ROOM - 99, source.courier.descriptor)
        for _ in range(3):
            target.courier.expect(source.payload(100), 0, source.courier.descriptor)
        with pytest.raises(AgentError, match="too many"):
            target.courier.expect(source.payload(100), 0, source.courier.descriptor)


def test_abandoned_and_forgotten_are_told() -> None:
    with fakes() as (source, target):
        target.courier.abandon(target.courier.expect(source.payload(100), 0, source.courier.descriptor))
        assert target.received.wait(1) == [(3, 1, "abandoned")]
        target.courier.expect(source.payload(100), 0, source.courier.descriptor)
        target.courier.peer_gone("a")
        assert target.received.wait(2)[1] == (3, 1, "a is gone")


def test_a_library_that_breaks_is_told_to_all_and_takes_nothing_more() -> None:
    with fakes() as (source, target):
        target.courier.expect(source.payload(100), 0, source.courier.descriptor)
        target.courier._agent.breaks = True  # type: ignore[attr-defined]
        assert target.received.wait(1) == [(3, 1, "the library broke")]
        assert target.courier.failure == "the library broke"
        with pytest.raises(AgentError, match="the library broke"):
            target.courier.expect(source.payload(100), 0, source.courier.descriptor)


def test_a_mistake_in_the_thread_is_told_too() -> None:
    with fakes() as (source, target):
        payload = source.payload(100)
        source.courier.submit(
            OneSidedSend(1, target.courier.descriptor, replace(payload, token=b"short"), 0), Priority.KV
        )
        assert "a token of another length" in source.sent.wait(1)[0][1]
        outside = replace(payload, length_bytes=100, token=target.courier.expect(payload, 0, source.courier.descriptor))
        source.courier.submit(OneSidedSend(2, target.courier.descriptor, outside, ROOM - 50), Priority.KV)
        assert source.sent.wait(2)[1][1].startswith("ValueError")
        assert not source.courier.submit(OneSidedSend(3, target.courier.descriptor, outside, 0), Priority.KV)


def receiver(pipe: Any) -> None:
    """A process that expects what it is told to, and says what it got."""
    side = Side(open_nixl_agent("receiver", CUT), 2, stall_s=2.0)
    pipe.send(side.courier.descriptor)
    while (asked := pipe.recv()) is not None:
        command, *arguments = asked
        if command == "expect":
            pipe.send(side.courier.expect(*arguments))
        elif command == "forget":
            side.courier.peer_gone(*arguments)
        elif command == "received":
            pipe.send(side.received.wait(*arguments))
        else:
            offset, length = arguments
            pipe.send(xxhash.xxh3_64_intdigest(side.room[offset : offset + length]))
    side.courier.close()


class There:
    """The receiving process."""

    def __init__(self) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=receiver, args=(theirs,), daemon=True)
        self.process.start()
        assert self.pipe.poll(300), "the receiver did not start"
        self.about: TransferAgent = self.pipe.recv()

    def ask(self, *asked: Any) -> Any:
        self.pipe.send(asked)
        assert self.pipe.poll(300), asked
        return self.pipe.recv()

    def end(self) -> None:
        if self.process.is_alive():
            os.kill(self.process.pid or 0, signal.SIGCONT)
            self.process.kill()
        self.process.join()


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side(open_nixl_agent("sender", CUT), 1, stall_s=2.0, patience_s=4.0)
    yield made
    made.courier.close()


@pytest.fixture
def start() -> Iterator[Callable[[], There]]:
    made: list[There] = []

    def begin() -> There:
        made.append(There())
        return made[-1]

    yield begin
    for there in made:
        there.end()


def ship(side: Side, there: There, length: int, at: int = 0, ticket: int = 1) -> None:
    payload = side.payload(length)
    token = there.ask("expect", payload, at, side.courier.descriptor)
    assert side.courier.submit(OneSidedSend(ticket, there.about, replace(payload, token=token), 0), Priority.KV)


@needs_nixl
def test_regions_between_two_processes(side: Side, start: Callable[[], There]) -> None:
    there = start()
    for ticket, length in enumerate((0, 1, 1000, 1 << 18, 3_000_001)):
        ship(side, there, length, at=4096, ticket=ticket)
        assert side.sent.wait(ticket + 1)[-1] == (ticket, "")
        assert there.ask("received", ticket + 1)[-1] == (3, 1, "")
        assert there.ask("digest", 4096, length) == xxhash.xxh3_64_intdigest(side.room[:length])


@needs_nixl
def test_many_regions_at_once(side: Side, start: Callable[[], There]) -> None:
    there = start()
    for ticket in range(40):
        ship(side, there, 100_000 + ticket, at=100_100 * ticket % (4 << 20), ticket=ticket)
    assert {detail for _, detail in side.sent.wait(40)} == {""}


@needs_nixl
def test_a_peer_that_was_killed_is_told_and_its_successor_is_met(side: Side, start: Callable[[], There]) -> None:
    first = start()
    ship(side, first, 1000)
    assert side.sent.wait(1) == [(1, "")]
    os.kill(first.process.pid or 0, signal.SIGSTOP)
    side.courier.submit(OneSidedSend(2, first.about, replace(side.payload(1000), token=b"t" * 16), 0), Priority.KV)
    first.end()
    assert side.sent.wait(2)[1][1] != ""
    side.courier.peer_gone(first.about.name)
    second = start()
    ship(side, second, 1 << 20, ticket=3)
    assert side.sent.wait(3)[2] == (3, "")


@needs_nixl
def test_a_peer_that_stands_still_is_given_up_and_works_again_when_it_wakes(
    side: Side, start: Callable[[], There]
) -> None:
    there = start()
    ship(side, there, 1000)
    assert side.sent.wait(1) == [(1, "")]
    payload = side.payload(3 << 20)
    token = there.ask("expect", payload, 0, side.courier.descriptor)
    os.kill(there.process.pid or 0, signal.SIGSTOP)
    side.courier.submit(OneSidedSend(2, there.about, replace(payload, token=token), 0), Priority.KV)
    assert "said nothing" in side.sent.wait(2)[1][1]
    os.kill(there.process.pid or 0, signal.SIGCONT)
    there.ask("received", 2)
    for ticket in range(3, 8):
        ship(side, there, 1 << 20, ticket=ticket)
        if side.sent.wait(ticket)[ticket - 1] == (ticket, ""):
            return
    raise AssertionError(side.sent.news)


@needs_nixl
def test_a_peer_that_was_forgotten_is_met_again(side: Side, start: Callable[[], There]) -> None:
    there = start()
    for ticket in (1, 2, 3):
        ship(side, there, 1 << 20, ticket=ticket)
        assert side.sent.wait(ticket)[ticket - 1] == (ticket, "")
        side.courier.peer_gone(there.about.name)
        there.pipe.send(("forget", side.courier.descriptor.name))


@needs_nixl
def test_an_idle_agent_costs_nothing_to_speak_of(side: Side) -> None:
    time.sleep(0.5)
    before_s = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before_s < 0.1


@needs_nixl
def test_loading_the_transport_loads_no_library_and_opening_an_agent_no_torch() -> None:
    program = (
        "import dunlin.transport.one_sided.transfer_loop, dunlin.transport.one_sided.nixl_agent as agent, sys;"
        "loaded = set(sys.modules);"
        "assert not loaded & {*agent.BUILDS, 'nixl', 'torch'}, loaded;"
        "made = agent.open_agent('a'); assert 'torch' not in sys.modules; made.close()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
