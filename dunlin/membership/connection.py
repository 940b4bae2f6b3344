"""Channels to the endpoints of one etcd cluster, and the choice among them.

Knows addresses, timeouts, tokens and gRPC's errors; knows no method and no message of etcd.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import grpc
import grpc.aio

from dunlin.membership.auth import AuthToken, CallMetadata, EtcdUser
from dunlin.membership.endpoints import check_endpoint
from dunlin.membership.errors import Compacted, EtcdError, EtcdUnavailable, LeaseLost, TokenRefused

T = TypeVar("T")

_CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.enable_http_proxy", 0),  # else http_proxy in the environment keeps gRPC even from loopback
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also how long gRPC tries one connection
    ("grpc.max_reconnect_backoff_ms", 500),
    # etcd drops a client that pings more often than every 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 2 << 20),
]

MakeCredentials = Callable[[], grpc.ChannelCredentials]
"""The credentials for a connection that begins now; the same object until they change."""

EtcdCall = Callable[[grpc.aio.Channel, CallMetadata], Awaitable[T]]

# etcd's words for "who are you?": the token is unknown (members forget them), outdated, or missing.
_REFUSED = ("invalid auth token", "revision of auth store is old", "user name is empty")

_UNAVAILABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: `connect_s` to reach one endpoint, `call_s` for one answer."""

    connect_s: float = 1.0
    call_s: float = 3.0


def translate(error: grpc.aio.AioRpcError, endpoint: str) -> EtcdError:
    """The error of ours that says what the caller can do about `error`."""
    details = error.details() or error.code().name
    if error.code() in _UNAVAILABLE:
        return EtcdUnavailable(f"etcd at {endpoint}: {details}")
    if any(text in details for text in _REFUSED):
        return TokenRefused(f"etcd at {endpoint}: {details} (does it want a user and a password?)")
    if error.code() is grpc.StatusCode.NOT_FOUND and "lease" in details:
        return LeaseLost(f"etcd at {endpoint}: {details}")
    if error.code() is grpc.StatusCode.OUT_OF_RANGE and "compacted" in details:
        return Compacted(f"etcd at {endpoint}: {details}")
    return EtcdError(f"etcd at {endpoint}: {error.code().name}: {details}")


async def answer(waiting: Awaitable[T], endpoint: str) -> T:
    """What `waiting` returns; whatever gRPC raises becomes an EtcdError that names the endpoint."""
    try:
        return await waiting
    except grpc.aio.AioRpcError as error:
        raise translate(error, endpoint) from error
    except asyncio.InvalidStateError as error:  # a write on a stream that has ended
        raise EtcdUnavailable(f"etcd at {endpoint} ended the stream") from error
    except asyncio.CancelledError:
        # gRPC raises this also when the *server* cancelled the call; only the task's own cancellation goes through.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise EtcdUnavailable(f"etcd at {endpoint} cancelled the call") from None


@dataclass(frozen=True, slots=True)
class _Opened:
    channel: grpc.aio.Channel
    credentials: grpc.ChannelCredentials | None


def _open(endpoint: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(endpoint, options=_CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(endpoint, credentials, options=_CHANNEL_OPTIONS)


class EtcdConnection:
    """Owns one channel per endpoint, made on first use inside the running event loop."""

    def __init__(
        self,
        endpoints: Sequence[str],
        timeouts: Timeouts,
        credentials: MakeCredentials | None = None,
        user: EtcdUser | None = None,
    ) -> None:
        if not endpoints:
            raise ValueError("no etcd endpoint given")
        self.endpoints = tuple(check_endpoint(endpoint) for endpoint in endpoints)
        self.timeouts = timeouts
        self.token = AuthToken(user or EtcdUser(), timeouts.call_s)
        self._credentials = credentials
        self._channels: dict[str, _Opened] = {}
        self._current = 0

    @property
    def current(self) -> str:
        """The endpoint that the next call tries first."""
        return self.endpoints[self._current]

    async def call(self, attempt: EtcdCall[T], *, repeatable: bool) -> T:
        """Run `attempt` on the first endpoint that can be reached.

        A repeatable call (a read) goes on to the next endpoint when the answer is lost, and comes back to the first
        one at the end, whose connection may have been lost while etcd was away. Any other call does not, since it may
        have been carried out. Raises EtcdUnavailable, or what `translate` makes of the refusal.
        """
        failures: list[str] = []
        for _ in range(len(self.endpoints) + 1):
            channel, endpoint = await self.channel()
            try:
                metadata = await self.metadata(channel, endpoint)
            except EtcdUnavailable as away:
                failures.append(str(away))
                continue
            try:
                return await self._with_token(attempt, channel, metadata, endpoint)
            except EtcdUnavailable as away:
                self.rotate(endpoint)
                if not repeatable:
                    raise
                failures.append(str(away))
        self._raise_unavailable(failures)

    async def metadata(self, channel: grpc.aio.Channel, endpoint: str) -> CallMetadata:
        """What a call over `channel` carries to say whose it is. Raises EtcdError; no other call was sent then."""
        try:
            return await answer(self.token.metadata(channel), endpoint)
        except EtcdUnavailable:
            self.rotate(endpoint)
            raise

    async def _with_token(
        self, attempt: EtcdCall[T], channel: grpc.aio.Channel, metadata: CallMetadata, endpoint: str
    ) -> T:
        """One call; once more with a new token if etcd did not take this one, which it says before it does anything."""
        try:
            return await answer(attempt(channel, metadata), endpoint)
        except TokenRefused:
            if not self.token.refused(metadata):
                raise
        return await answer(attempt(channel, await self.metadata(channel, endpoint)), endpoint)

    async def channel(self) -> tuple[grpc.aio.Channel, str]:
        """A connected channel and its endpoint's name. Raises EtcdUnavailable naming all endpoints."""
        failures: list[str] = []
        for _ in self.endpoints:
            endpoint = self.current
            try:
                return await self._ready(endpoint), endpoint
            except EtcdUnavailable as away:
                self.rotate(endpoint)
                failures.append(str(away))
        self._raise_unavailable(failures)

    def rotate(self, failed: str) -> None:
        """Try another endpoint next, unless another call already turned away from `failed`."""
        if self.current == failed:
            self._current = (self._current + 1) % len(self.endpoints)

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = self._channels, {}
        for opened in channels.values():
            await opened.channel.close(None)

    async def _ready(self, endpoint: str) -> grpc.aio.Channel:
        # A write is sent only on a live connection: so one that could not connect surely did not happen.
        channel = self._channel_to(endpoint)
        if channel.get_state(try_to_connect=True) is not grpc.ChannelConnectivity.READY:
            try:
                async with asyncio.timeout(self.timeouts.connect_s):
                    await channel.channel_ready()
            except TimeoutError:
                raise EtcdUnavailable(f"no connection to {endpoint} within {self.timeouts.connect_s:g} s") from None
        return channel

    def _channel_to(self, endpoint: str) -> grpc.aio.Channel:
        """The channel to `endpoint`; one that has lost its connection is left when the credentials have changed."""
        opened = self._channels.get(endpoint)
        if opened is not None and opened.channel.get_state() is grpc.ChannelConnectivity.READY:
            return opened.channel
        credentials = self._credentials() if self._credentials is not None else None
        if opened is None or opened.credentials is not credentials:
            # The one before closes itself when the last call has let go of it.
            opened = self._channels[endpoint] = _Opened(_open(endpoint, credentials), credentials)
        return opened.channel

    def _raise_unavailable(self, failures: list[str]) -> NoReturn:
        raise EtcdUnavailable(f"etcd is not reachable at {', '.join(self.endpoints)}: {'; '.join(failures)}")
