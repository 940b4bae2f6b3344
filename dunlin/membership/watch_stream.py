"""One watch stream of one etcd member, from its first word to its end.

It asks for a sign of life when nothing comes, so that a member that hangs is left, not waited for. Knows no endpoint
but its own, and nothing of what was seen before.
"""

import asyncio

import grpc.aio
from google.protobuf.message import Message

from dunlin.membership.connection import EtcdConnection, answer
from dunlin.membership.errors import Compacted, EtcdError, EtcdUnavailable, TokenRefused
from dunlin.membership.values import key_bytes, prefix_end
from dunlin.v1 import etcd_pb2 as pb

WatchCall = grpc.aio.StreamStreamCall[Message, pb.WatchResponse]

# Of the time that a call may take: a silent stream is asked for a sign of life this early, and left after all of it.
_ASK_SHARE = 1 / 3


class WatchStream:
    """Owns one call. Every method raises EtcdError when the stream is over; then `close` it."""

    def __init__(self, call: WatchCall, endpoint: str, silence_s: float) -> None:
        self.endpoint = endpoint
        self._call = call
        self._silence_s = silence_s

    @staticmethod
    async def open(connection: EtcdConnection, prefix: str, start_revision: int) -> "tuple[WatchStream, int]":
        """Watch all keys that start with `prefix` from `start_revision` on; also says at which revision etcd is.

        Raises Compacted when etcd has forgotten that much, EtcdUnavailable (after turning away from the endpoint) or
        another EtcdError.
        """
        channel, endpoint = await connection.channel()
        metadata = await connection.metadata(channel, endpoint)
        # hasleader: an etcd member cut off from the others ends the stream instead of leaving it silent.
        call = channel.stream_stream(
            "/etcdserverpb.Watch/Watch",
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )(metadata=(("hasleader", "true"), *metadata))
        stream = WatchStream(call, endpoint, connection.timeouts.call_s)
        try:
            return stream, await stream._begin(prefix, start_revision)
        except BaseException as error:
            stream.close()
            if isinstance(error, EtcdUnavailable):
                connection.rotate(endpoint)
            if isinstance(error, TokenRefused):
                connection.token.refused(metadata)
            raise

    async def read(self) -> pb.WatchResponse:
        """The next response. Raises EtcdUnavailable when the member neither speaks nor answers."""
        # Cancelling a read ends the whole call, so it is waited for and never cancelled before the stream is over.
        reading = asyncio.ensure_future(answer(self._call.read(), self.endpoint))
        try:
            if not await self._came(reading, self._silence_s * _ASK_SHARE):
                ask = pb.WatchRequest(progress_request=pb.WatchProgressRequest())
                await answer(self._call.write(ask), self.endpoint)
                if not await self._came(reading, self._silence_s * (1 - _ASK_SHARE)):
                    raise EtcdUnavailable(f"etcd at {self.endpoint} is silent for {self._silence_s:g} s")
            return _checked(reading.result(), self.endpoint)
        finally:
            reading.cancel()

    def close(self) -> None:
        """End the call."""
        self._call.cancel()

    async def _begin(self, prefix: str, start_revision: int) -> int:
        create = pb.WatchCreateRequest(
            key=key_bytes(prefix), range_end=prefix_end(prefix), start_revision=start_revision
        )
        try:
            async with asyncio.timeout(self._silence_s):
                await answer(self._call.write(pb.WatchRequest(create_request=create)), self.endpoint)
                return _checked(await answer(self._call.read(), self.endpoint), self.endpoint).header.revision
        except TimeoutError:
            raise EtcdUnavailable(f"etcd at {self.endpoint} did not begin the watch in time") from None

    async def _came(self, reading: "asyncio.Future[object]", within_s: float) -> bool:
        done, _ = await asyncio.wait([reading], timeout=within_s)
        return bool(done)


def _checked(response: object, endpoint: str) -> pb.WatchResponse:
    """The response, unless it says that the watch is over."""
    if not isinstance(response, pb.WatchResponse):
        raise EtcdUnavailable(f"etcd at {endpoint} ended the watch")
    if response.compact_revision > 0:
        raise Compacted(f"the history before revision {response.compact_revision} is compacted")
    if response.canceled:
        raise _cancelled(response.cancel_reason, endpoint)
    return response


def _cancelled(reason: str, endpoint: str) -> EtcdError:
    text = f"etcd at {endpoint} cancelled the watch: {reason or 'no reason given'}"
    # etcd 3.5 answers a watch that has no valid token as one that may not read.
    return TokenRefused(text) if "permission denied" in reason or "auth" in reason else EtcdUnavailable(text)
