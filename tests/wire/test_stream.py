"""One `PeerStream` over a pipe that the test holds: every order of events, exactly."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest

from dunlin.effects import Gone, Joined
from dunlin.messages.dispatch import Cancel, Ended
from dunlin.messages.types import Header
from dunlin.wire.envelopes import DISPATCH
from dunlin.wire.streams.stream import PeerStream, StreamCounters, StreamEnd, StreamLimits
from tests.wire.ends import DISPATCHER, INSTANCE, End


class FakePipe:
    """Frames come out of `incoming` (an exception is raised instead) and go to `written` while `writable` is set."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[object] = asyncio.Queue()
        self.written: list[bytes] = []
        self.writable = asyncio.Event()
        self.broken: BaseException | None = None

    async def read(self) -> object:
        item = await self.incoming.get()
        if isinstance(item, BaseException):
            raise item
        return item

    async def write(self, message: bytes, /) -> None:
        await self.writable.wait()
        if self.broken:
            raise self.broken
        self.written.append(message)


class Bench:
    """An instance's side of one stream with a dispatcher, running."""

    def __init__(self, limits: StreamLimits | None = None) -> None:
        self.end = End(INSTANCE)
        self.pipe = FakePipe()
        self.counters = StreamCounters()
        self.stream = PeerStream(
            self.end.host, DISPATCHER, DISPATCH.event, DISPATCH.command, limits or StreamLimits(), self.counters
        )
        self.running = asyncio.create_task(self.stream.run(self.pipe))

    @property
    def heard(self) -> list[object]:
        return list(self.end.core.messages)

    def arrive(self, message: object) -> None:
        self.pipe.incoming.put_nowait(DISPATCH.command.encode(Header(DISPATCHER), message))


async def settle() -> None:
    """Let everything that can run now do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def on_bench(scenario: Callable[[Bench], Awaitable[None]], limits: StreamLimits | None = None) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(300):
            bench = Bench(limits)
            await settle()
            await scenario(bench)
            assert bench.end.errors == []

    asyncio.run(bounded())


def test_frames_go_out_in_order_as_the_pipe_takes_them() -> None:
    async def scenario(bench: Bench) -> None:
        assert all(bench.stream.send(Ended(number, 1)) for number in range(3))
        await settle()
        assert bench.pipe.written == []
        bench.pipe.writable.set()
        await settle()
        assert [DISPATCH.event.decode(frame) for frame in bench.pipe.written] == [
            (Header(INSTANCE), Ended(number, 1)) for number in range(3)
        ]

    on_bench(scenario)


def test_a_frame_that_is_being_written_still_takes_room_in_bytes() -> None:
    size = len(DISPATCH.event.encode(Header(INSTANCE), Ended(1, 1)))

    async def scenario(bench: Bench) -> None:
        assert bench.stream.send(Ended(1, 1))
        await settle()
        assert bench.stream.send(Ended(2, 1))
        assert not bench.stream.send(Ended(3, 1))
        bench.pipe.writable.set()
        await settle()
        assert bench.stream.send(Ended(3, 1))

    on_bench(scenario, StreamLimits(size_bytes=2 * size))


def test_the_number_of_waiting_frames_is_bounded() -> None:
    async def scenario(bench: Bench) -> None:
        assert [bench.stream.send(Ended(number, 1)) for number in range(4)] == [True, True, True, False]

    on_bench(scenario, StreamLimits(messages=3))


def test_nothing_is_heard_of_a_stream_that_was_closed() -> None:
    async def scenario(bench: Bench) -> None:
        bench.arrive(Cancel(1, 1))
        await settle()
        bench.arrive(Cancel(2, 1))
        bench.end.host.detach(DISPATCHER, "told to")
        await settle()
        assert bench.heard == [Joined(), Cancel(1, 1), Gone("told to")]
        assert await bench.running == StreamEnd("told to", grpc.StatusCode.ABORTED)

    on_bench(scenario)


def test_a_send_after_the_end_is_a_loss_and_no_full_queue() -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.end.host.send(DISPATCHER, Ended(1, 1))
        bench.stream.close("over")
        assert bench.end.host.send(DISPATCHER, Ended(2, 1))
        await settle()
        assert bench.end.host.overflowed == 0
        assert bench.heard == [Joined(), Gone("over")]

    on_bench(scenario, StreamLimits(messages=1))


def test_no_task_outlives_its_stream() -> None:
    async def scenario(bench: Bench) -> None:
        assert len(asyncio.all_tasks()) == 4  # the test, the stream, its reader and its writer
        bench.stream.close("over")
        await bench.running
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    on_bench(scenario)


def test_the_peers_end_of_stream_is_an_orderly_end() -> None:
    async def scenario(bench: Bench) -> None:
        bench.pipe.incoming.put_nowait(grpc.aio.EOF)
        assert (await bench.running).code is grpc.StatusCode.OK
        assert bench.heard == [Joined(), Gone("the peer ended the stream")]

    on_bench(scenario)


def test_a_write_on_a_finished_stream_ends_it() -> None:
    async def scenario(bench: Bench) -> None:
        bench.pipe.broken = asyncio.InvalidStateError("RPC already finished.")
        bench.pipe.writable.set()
        assert bench.stream.send(Ended(1, 1))
        await bench.running
        assert bench.heard == [Joined(), Gone("InvalidStateError: RPC already finished.")]

    on_bench(scenario)


def test_the_readers_word_on_the_end_comes_before_the_writers() -> None:
    async def scenario(bench: Bench) -> None:
        bench.pipe.broken = asyncio.InvalidStateError("RPC already finished.")
        bench.pipe.writable.set()
        assert bench.stream.send(Ended(1, 1))
        await settle()
        bench.pipe.incoming.put_nowait(grpc.aio.UsageError("the real cause"))
        await bench.running
        assert bench.heard == [Joined(), Gone("UsageError: the real cause")]

    on_bench(scenario)


def test_a_call_cancelled_by_grpc_ends_the_stream_with_gone() -> None:
    async def scenario(bench: Bench) -> None:
        bench.running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await bench.running
        assert bench.heard == [Joined(), Gone("the call was cancelled or its connection lost")]

    on_bench(scenario)


def test_a_mistake_of_ours_in_a_task_is_a_crash() -> None:
    async def scenario(bench: Bench) -> None:
        bench.pipe.incoming.put_nowait(ZeroDivisionError("a mistake"))
        await settle()
        assert [str(error) for error in bench.end.errors] == ["a mistake"]
        bench.end.errors.clear()
        bench.stream.close("over")
        await bench.running

    on_bench(scenario)
