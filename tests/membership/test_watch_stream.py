"""One watch stream over a call that the test plays: its first word, its silence, and each of its ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import pytest

from dunlin.membership.connection import EtcdConnection, Timeouts
from dunlin.membership.errors import Compacted, EtcdUnavailable, TokenRefused
from dunlin.membership.watch_stream import WatchStream
from dunlin.v1 import etcd_pb2 as pb

ENDPOINTS = ["h:1", "h:2"]


class PlayedCall:
    """A member's end of a watch: `says` comes out of `read`; an exception is raised, an empty queue is silence."""

    def __init__(self, *says: object) -> None:
        self.says: asyncio.Queue[object] = asyncio.Queue()
        for each in says:
            self.says.put_nowait(each)
        self.asked: list[pb.WatchRequest] = []
        self.on_ask: Callable[[], None] = lambda: None
        self.is_cancelled = False

    async def write(self, request: pb.WatchRequest) -> None:
        self.asked.append(request)
        if request.HasField("progress_request"):
            self.on_ask()

    async def read(self) -> object:
        said = await self.says.get()
        if isinstance(said, BaseException):
            raise said
        return said

    def cancel(self) -> None:
        self.is_cancelled = True


class PlayedConnection(EtcdConnection):
    """Its channel opens the played call."""

    def __init__(self, call: PlayedCall, call_s: float = 60.0) -> None:
        super().__init__(ENDPOINTS, Timeouts(1.0, call_s))
        self.call_played = call
        self.metadata_sent: Any = None

    async def channel(self) -> tuple[Any, str]:
        return self, self.current

    async def metadata(self, channel: Any, endpoint: str) -> Any:
        return (("token", "t"),)

    def stream_stream(self, method: str, **_: Any) -> Callable[..., PlayedCall]:
        assert method == "/etcdserverpb.Watch/Watch"

        def call(metadata: Any) -> PlayedCall:
            self.metadata_sent = metadata
            return self.call_played

        return call


def created(revision: int = 7) -> pb.WatchResponse:
    return pb.WatchResponse(header=pb.ResponseHeader(revision=revision), created=True)


def event(revision: int) -> pb.WatchResponse:
    return pb.WatchResponse(header=pb.ResponseHeader(revision=revision), events=[pb.Event(kv=pb.KeyValue(key=b"/a"))])


def opened(call: PlayedCall, test: Callable[[WatchStream], Awaitable[None]], call_s: float = 60.0) -> PlayedConnection:
    """Run `test` with a stream that was opened over `call`."""
    connection = PlayedConnection(call, call_s)

    async def scenario() -> None:
        stream, revision = await WatchStream.open(connection, "/w/", 5)
        assert revision == 7
        await test(stream)

    asyncio.run(scenario())
    return connection


def test_it_asks_for_the_prefix_from_a_revision_on_and_for_a_leader() -> None:
    async def test(stream: WatchStream) -> None:
        assert stream.endpoint == "h:1"

    call = PlayedCall(created())
    connection = opened(call, test)
    wanted = pb.WatchCreateRequest(key=b"/w/", range_end=b"/w0", start_revision=5)
    assert call.asked == [pb.WatchRequest(create_request=wanted)]
    assert connection.metadata_sent == (("hasleader", "true"), ("token", "t"))
    assert not call.is_cancelled


def test_responses_come_in_order_and_close_ends_the_call() -> None:
    call = PlayedCall(created(), event(8), event(9))

    async def test(stream: WatchStream) -> None:
        assert [(await stream.read()).header.revision for _ in range(2)] == [8, 9]
        stream.close()

    opened(call, test)
    assert call.is_cancelled


def test_a_silent_member_is_asked_for_a_sign_of_life() -> None:
    call = PlayedCall(created())
    call.on_ask = lambda: call.says.put_nowait(event(9))

    async def test(stream: WatchStream) -> None:
        assert (await stream.read()).header.revision == 9

    opened(call, test, call_s=0.03)
    assert call.asked[1:] == [pb.WatchRequest(progress_request=pb.WatchProgressRequest())]


def test_one_that_stays_silent_is_left() -> None:
    async def test(stream: WatchStream) -> None:
        with pytest.raises(EtcdUnavailable, match=r"etcd at h:1 is silent for 0\.03 s"):
            await stream.read()

    opened(PlayedCall(created()), test, call_s=0.03)


@pytest.mark.parametrize(
    ("end", "kind", "text"),
    [
        (grpc.aio.EOF, EtcdUnavailable, "etcd at h:1 ended the watch"),
        (pb.WatchResponse(compact_revision=3), Compacted, "before revision 3 is compacted"),
        (pb.WatchResponse(canceled=True), EtcdUnavailable, "cancelled the watch: no reason given"),
        (pb.WatchResponse(canceled=True, cancel_reason="no leader"), EtcdUnavailable, "no leader"),
        (pb.WatchResponse(canceled=True, cancel_reason="permission denied"), TokenRefused, "permission denied"),
        (pb.WatchResponse(canceled=True, cancel_reason="invalid auth token"), TokenRefused, "auth token"),
        (asyncio.InvalidStateError(), EtcdUnavailable, "etcd at h:1 ended the stream"),
    ],
)
def test_each_end_says_what_to_do(end: object, kind: type[Exception], text: str) -> None:
    async def test(stream: WatchStream) -> None:
        with pytest.raises(kind, match=text):
            await stream.read()

    opened(PlayedCall(created(), end), test)


@pytest.mark.parametrize(
    ("first", "kind", "next_endpoint"),
    [
        (pb.WatchResponse(compact_revision=3), Compacted, "h:1"),
        (grpc.aio.EOF, EtcdUnavailable, "h:2"),
        (pb.WatchResponse(canceled=True, cancel_reason="invalid auth token"), TokenRefused, "h:1"),
    ],
)
def test_a_stream_that_cannot_begin_is_closed_and_an_unreachable_endpoint_left(
    first: object, kind: type[Exception], next_endpoint: str
) -> None:
    call = PlayedCall(first)
    connection = PlayedConnection(call)

    async def scenario() -> None:
        with pytest.raises(kind):
            await WatchStream.open(connection, "/w/", 5)

    asyncio.run(scenario())
    assert call.is_cancelled
    assert connection.current == next_endpoint


def test_a_member_that_does_not_begin_in_time_is_left() -> None:
    connection = PlayedConnection(PlayedCall(), call_s=0.02)

    async def scenario() -> None:
        with pytest.raises(EtcdUnavailable, match="did not begin the watch in time"):
            await WatchStream.open(connection, "/w/", 5)

    asyncio.run(scenario())
    assert connection.current == "h:2"
