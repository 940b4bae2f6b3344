"""Asks one process whether it lives: by its open stream, else by a connection and gRPC's health service.

A process answers for its own address alone (`health_name`), so that another process at its port does not pass for it.
Knows no registration, and draws no conclusion from silence.
"""

import asyncio
from collections.abc import Callable

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from dunlin.effects import Address
from dunlin.membership.endpoints import split_endpoint
from dunlin.membership.failure_detector import ProbeVerdict
from dunlin.messages.membership import Member
from dunlin.wire.channels import open_channel
from dunlin.wire.security import IdentitySource

_AT_ONCE = 16


def health_name(address: Address) -> str:
    """The service name under which a process answers gRPC's health check for its address."""
    return f"dunlin.member/{address.role}/{address.name}/{address.incarnation}"


class LivenessProber:
    """Probes at most 16 at once, each for at most `deadline_s` from its turn on."""

    def __init__(
        self, connected: Callable[[Address], bool], security: IdentitySource | None = None, deadline_s: float = 1.0
    ) -> None:
        self._connected = connected
        self._security = security
        self._deadline_s = deadline_s
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def probe(self, member: Member) -> ProbeVerdict:
        """Probe `member` now. Never raises."""
        if self._connected(member.address):
            return ProbeVerdict.ALIVE
        async with self._turns:
            try:
                async with asyncio.timeout(self._deadline_s):
                    return await self._ask(member)
            except ConnectionRefusedError:  # the machine answers that nothing listens there
                return ProbeVerdict.GONE
            except (OSError, OverflowError, ValueError, grpc.aio.AioRpcError):  # OSError: also TimeoutError
                return ProbeVerdict.SILENT

    async def _ask(self, member: Member) -> ProbeVerdict:
        await _connect(member.endpoint)
        address = member.address
        identity = self._security.current() if self._security is not None else None
        async with open_channel(member.endpoint, identity, address.role, address.name) as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            try:
                answer = await check(health_pb2.HealthCheckRequest(service=health_name(address)))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:  # another process has the port
                    return ProbeVerdict.GONE
                raise
        return ProbeVerdict.ALIVE if answer.status == health_pb2.HealthCheckResponse.SERVING else ProbeVerdict.GONE


async def _connect(endpoint: str) -> None:
    """Raises ConnectionRefusedError at once where nothing listens: gRPC tells it only in an error's text."""
    _, writer = await asyncio.open_connection(*split_endpoint(endpoint))
    writer.close()
