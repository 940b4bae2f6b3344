"""The gRPC server of a service: binding, health, reflection. Knows no membership and no core."""

from collections.abc import Iterable, Sequence

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dunlin.wire.channels import MESSAGE_LIMIT_BYTES, SERVER_OPTIONS
from dunlin.wire.errors import StartError

_CALLS_AT_ONCE = 8_192
_SERVING = health_pb2.HealthCheckResponse.SERVING


class GrpcServer:
    """Owns one listening port. It is bound when made, and answers from `start` on.

    `credentials` None: plaintext. A message of more than `most_message_bytes` is refused before it is read.
    """

    def __init__(
        self,
        listen: str,
        credentials: grpc.ServerCredentials | None = None,
        most_message_bytes: int = MESSAGE_LIMIT_BYTES,
    ) -> None:
        options = dict(SERVER_OPTIONS) | {"grpc.max_receive_message_length": most_message_bytes}
        self._server = grpc.aio.server(options=list(options.items()), maximum_concurrent_rpcs=_CALLS_AT_ONCE)
        self._health = health.aio.HealthServicer()
        self.port = self._bind(listen, credentials)

    def _bind(self, listen: str, credentials: grpc.ServerCredentials | None) -> int:
        try:
            if credentials is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise StartError(_cannot_bind(listen)) from error
        if port == 0:
            raise StartError(_cannot_bind(listen))
        return port

    async def start(
        self, handlers: Sequence[grpc.GenericRpcHandler], services: Iterable[str], own_name: str = ""
    ) -> None:
        """Answer calls. `services` are the full names that health and reflection tell, `own_name` health alone."""
        names = [*services, "grpc.health.v1.Health"]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), self._server)
        self._server.add_generic_rpc_handlers(tuple(handlers))
        await self._server.start()
        for name in {"": None, own_name: None} | dict.fromkeys(names):
            await self._health.set(name, _SERVING)

    async def set_not_serving(self) -> None:
        """From now on health says that nothing is served here; calls are still answered."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give the running ones `grace_s` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


def _cannot_bind(listen: str) -> str:
    return f"cannot listen on {listen}: the port is in use or the address is not this machine's; choose another"
