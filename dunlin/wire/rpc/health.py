"""Asks one server, once, over gRPC's health service whether it serves: for health checks of containers."""

import grpc
from grpc_health.v1 import health_pb2

from dunlin.wire.channels import open_blocking_channel
from dunlin.wire.security import TlsIdentity

_SERVING = health_pb2.HealthCheckResponse.SERVING


def why_unhealthy(endpoint: str, security: TlsIdentity | None, role: str, timeout_s: float) -> str:
    """Empty when the server at `endpoint` says that it serves, else why not. `role` counts with `security` only."""
    with open_blocking_channel(endpoint, security, role) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            answer = check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return "" if answer.status == _SERVING else f"it says {name}"
