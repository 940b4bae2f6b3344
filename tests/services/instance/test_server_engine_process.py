"""One engine process without a process: frames in and out, and what its end means."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from dunlin.effects import Effect, Message
from dunlin.engine.process.frames import FrameReader, frame
from dunlin.engine.process.progress_page import ProgressPage
from dunlin.engine.transfer.peer_rooms import PeerRoomTable
from dunlin.messages.engine import (
    CancelTransfer,
    EngineExited,
    EngineFailed,
    EngineStarted,
    Interrupt,
    StopEngine,
)
from dunlin.messages.types import Header, Verdict, Why
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT
from services.instance.server_engine_process import ACTIVATE, EngineProcess
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import ENGINE, ME


class Host:
    """A core host that records what is attached and delivered."""

    address = ME

    def __init__(self) -> None:
        self.attached: list[Any] = []
        self.delivered: list[Message] = []
        self.senders: list[int] = []

    def attach(self, address: Any, outlet: Any) -> None:
        self.attached.append((address, outlet))

    def deliver(self, sender: Any, message: Message) -> list[Effect]:
        assert (sender.role, sender.name) == (ENGINE.role, ENGINE.name)
        self.senders.append(sender.incarnation)
        self.delivered.append(message)
        return []


class Child:
    """A process that runs until it is killed, or has ended with a code."""

    pid = 4711

    def __init__(self, code: int | None = None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> int:
        assert self.code is not None, "it still runs"
        return self.code

    def kill(self) -> None:
        self.code = -9 if self.code is None else self.code


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self, queued_bytes: int = 0) -> None:
        self.written = b""
        self.is_aborted = False
        self.queued_bytes = queued_bytes

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def get_write_buffer_size(self) -> int:
        return self.queued_bytes


class Engine:
    """An engine process with a fake child, pipe and host."""

    def __init__(self, code: int | None = None, queued_bytes: int = 0) -> None:
        self.host, self.child, self.pipe = Host(), Child(code), Pipe(queued_bytes)
        host, child, pipe = (cast_any(one) for one in (self.host, self.child, self.pipe))
        self.page_fd = os.memfd_create("progress")
        self.page, self.rooms = ProgressPage(self.page_fd), PeerRoomTable(self.page_fd)
        self.process = EngineProcess(host, ENGINE, child, 3, self.page, self.rooms)
        self.process.connection_made(pipe)

    def say(self, message: Message, incarnation: int = 3) -> None:
        header = Header(ENGINE._replace(incarnation=incarnation))
        self.process.data_received(frame(ENGINE_EVENT.encode(header, message)))


def cast_any(value: object) -> Any:
    return value


def in_loop(check: Callable[[], None]) -> None:
    async def run() -> None:
        check()

    asyncio.run(run())


def test_only_an_engine_in_charge_speaks_to_the_core() -> None:
    def check() -> None:
        engine = Engine()
        engine.say(EngineFailed("a"))
        engine.say(make_engine_ready())
        assert engine.process.was_ready
        assert engine.host.delivered == []
        engine.process.activate(stood_by=True)
        engine.say(EngineFailed("b"))
        assert engine.host.attached == [(ENGINE, engine.process)]
        assert engine.host.delivered == [EngineStarted(4711), EngineFailed("b")]
        assert engine.host.senders == [0, 3], "events are of a life of the engine, the rest of its host"
        assert engine.pipe.written == ACTIVATE

    in_loop(check)


def test_an_engine_that_did_not_stand_by_needs_no_command() -> None:
    def check() -> None:
        engine = Engine()
        engine.process.activate(stood_by=False)
        assert engine.pipe.written == b""

    in_loop(check)


def test_an_empty_frame_says_that_it_stands_by() -> None:
    def check() -> None:
        engine = Engine()
        assert not engine.process.is_prepared
        engine.process.data_received(frame(b""))
        assert engine.process.is_prepared
        assert not engine.process.was_ready

    in_loop(check)


def test_its_own_failure_is_remembered() -> None:
    def check() -> None:
        engine = Engine()
        engine.say(EngineFailed("no such device"))
        assert engine.process.failure == "no such device"
        assert not engine.process.lost.done()

    in_loop(check)


def test_a_command_is_one_frame() -> None:
    def check() -> None:
        engine = Engine()
        assert engine.process.send(CancelTransfer(7))
        (body,) = FrameReader().feed(engine.pipe.written)
        header, message = ENGINE_COMMAND.decode(body)
        assert (header.sender, message) == (ME, CancelTransfer(7))

    in_loop(check)


def test_the_stop_word_is_written_before_an_interrupt_is_sent() -> None:
    def check() -> None:
        engine = Engine()
        seen: list[bool] = []
        engine.pipe.write = lambda data: seen.append(engine.page.is_called())  # type: ignore[method-assign]
        engine.process.send(CancelTransfer(7))
        engine.process.send(Interrupt(Verdict.DISCARD, ticket=5))
        engine.page.hear(5)
        assert seen == [False, True]
        assert not engine.page.is_called()

    in_loop(check)


def test_an_interrupt_that_cannot_be_sent_does_not_call_the_engine() -> None:
    def check() -> None:
        engine = Engine(queued_bytes=1 << 40)
        assert not engine.process.send(Interrupt(Verdict.DISCARD, ticket=5))
        assert not engine.page.is_called()

    in_loop(check)


@pytest.mark.parametrize("fault", ["full", "closing", "unconnected"])
def test_what_cannot_be_sent_is_said_at_once(fault: str) -> None:
    def check() -> None:
        engine = Engine(queued_bytes=1 << 40 if fault == "full" else 0)
        engine.pipe.is_aborted = fault == "closing"
        if fault == "unconnected":
            process = EngineProcess(cast_any(engine.host), ENGINE, cast_any(engine.child), 3, engine.page, engine.rooms)
            assert not process.send(CancelTransfer(7))
            return
        assert not engine.process.send(CancelTransfer(7))
        assert engine.pipe.written == b""

    in_loop(check)


def test_a_stop_kills_the_process_even_if_it_reads_nothing() -> None:
    def check() -> None:
        engine = Engine(queued_bytes=1 << 40)
        assert engine.process.send(StopEngine(Why("progress", "end the engine")))
        assert engine.child.code == -9

    in_loop(check)


@pytest.mark.parametrize(
    ("code", "exited"),
    [
        (0, EngineExited(0, 0, False, 1.5, 3)),
        (3, EngineExited(3, 0, False, 1.5, 3)),
        (-11, EngineExited(0, 11, False, 1.5, 3)),
    ],
)
def test_how_it_ended_is_an_exit_status_or_a_signal(code: int, exited: EngineExited) -> None:
    async def check() -> None:
        engine = Engine(code)
        engine.process.stop()
        assert await engine.process.exited(1.5) == exited

    asyncio.run(check())


def test_a_process_that_was_killed_here_was_stopped() -> None:
    async def check() -> None:
        engine = Engine()
        engine.process.stop()
        assert await engine.process.exited(0.0) == EngineExited(0, 9, True, 0.0, 3)

    asyncio.run(check())


def test_bytes_that_are_no_message_end_it_and_its_exit_is_not_believed() -> None:
    async def check() -> None:
        engine = Engine(code=0)
        engine.process.data_received(frame(b"\xff\xff\xff"))
        assert engine.pipe.is_aborted
        assert engine.process.lost.result().startswith("spoke nonsense: ")
        assert await engine.process.exited(0.0) is None

    asyncio.run(check())


def test_the_first_reason_of_a_loss_counts() -> None:
    def check() -> None:
        engine = Engine()
        engine.process.connection_lost(None)
        engine.process.close("later")
        assert engine.process.lost.result() == "closed its socket"

    in_loop(check)
