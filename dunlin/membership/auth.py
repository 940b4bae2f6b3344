"""A user's token for etcd: asked for with the password, used for every call, asked for again when it is refused.

Knows no endpoint and no call but its own; the connection tells it when a token was refused.
"""

import asyncio
import logging
from dataclasses import dataclass, field

import grpc
import grpc.aio

from dunlin.v1 import etcd_pb2 as pb

_log = logging.getLogger(__name__)

CallMetadata = tuple[tuple[str, str], ...]

HASH_TIMES = 10
"""A token may take so many times as long as any other answer: etcd hashes the password of each process that asks, some
0.1 s of its CPU time. A process that gave up and asked anew would add to what etcd has to do: of a fleet that starts at
once, or whose tokens etcd forgot, none would ever get one."""


@dataclass(frozen=True, slots=True)
class EtcdUser:
    """The etcd user that calls are made as. An empty name: calls carry no user, for an etcd without authentication."""

    name: str = ""
    password: str = field(default="", repr=False)


class AuthToken:
    """Owns the token of one user. Every member of the etcd cluster takes it, until the member forgets it."""

    def __init__(self, user: EtcdUser, timeout_s: float) -> None:
        self._user = user
        self._timeout_s = timeout_s
        self._metadata: CallMetadata | None = () if not user.name else None
        self._asked: asyncio.Task[CallMetadata] | None = None

    async def metadata(self, channel: grpc.aio.Channel) -> CallMetadata:
        """The metadata that authenticates a call; asks for a token over `channel` when there is none: once for all
        calls that wait, and those of them that give up leave it to the others.

        Raises grpc.aio.AioRpcError.
        """
        if self._metadata is not None:
            return self._metadata
        if self._asked is None:
            self._asked = asyncio.create_task(self._ask(channel), name="token of etcd")
            self._asked.add_done_callback(self._on_answer)
        return await asyncio.shield(self._asked)

    def _on_answer(self, asked: "asyncio.Task[CallMetadata]") -> None:
        self._asked = None
        if not asked.cancelled() and asked.exception() is None:
            self._metadata = asked.result()

    def refused(self, metadata: CallMetadata) -> bool:
        """A call with this metadata was refused. Returns whether another try may fare better."""
        if not self._user.name:
            return False
        if self._metadata == metadata:
            self._metadata = None
        return True

    async def _ask(self, channel: grpc.aio.Channel) -> CallMetadata:
        authenticate = channel.unary_unary(
            "/etcdserverpb.Auth/Authenticate",
            request_serializer=pb.AuthenticateRequest.SerializeToString,
            response_deserializer=pb.AuthenticateResponse.FromString,
        )
        request = pb.AuthenticateRequest(name=self._user.name, password=self._user.password)
        try:
            response = await authenticate(request, timeout=HASH_TIMES * self._timeout_s)
        except grpc.aio.AioRpcError as error:
            if "authentication is not enabled" not in (error.details() or ""):
                raise
            _log.warning("etcd's authentication is off: user %r is not used", self._user.name)
            return ()
        return (("token", response.token),)
