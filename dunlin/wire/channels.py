"""gRPC's settings, for every client and server of dunlin. The SDK uses it, so it knows no service and no etcd."""

import grpc
import grpc.aio

from dunlin.wire.security import TlsIdentity, server_name

Options = list[tuple[str, int]]

MESSAGE_LIMIT_BYTES = 64 << 20
_KEEPALIVE_MS = 5_000
_KEEPALIVE_TIMEOUT_MS = 5_000

_SHARED: Options = [
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),  # keepalive_timeout_ms alone leaves it at a minute
    ("grpc.http2.max_pings_without_data", 0),
]

CLIENT_OPTIONS: Options = [
    *_SHARED,
    ("grpc.enable_http_proxy", 0),  # else http_proxy in the environment keeps gRPC even from loopback
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits another one's backoff
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also how long gRPC tries one connection
    ("grpc.max_reconnect_backoff_ms", 500),
]

SERVER_OPTIONS: Options = [
    *_SHARED,
    ("grpc.so_reuseport", 0),  # else two servers share a port in silence
    ("grpc.max_concurrent_streams", 4_096),
    ("grpc.server_handshake_timeout_ms", 10_000),  # for TLS and HTTP/2's first frames; two minutes unless said
    ("grpc.max_connection_idle_ms", 300_000),  # without a call: keepalive sees no peer that went away meanwhile
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),  # else the clients' keepalive counts as abuse
    ("grpc.http2.max_ping_strikes", 0),
]


def open_channel(
    endpoint: str, security: TlsIdentity | None = None, role: str = "dispatcher", name: str = ""
) -> grpc.aio.Channel:
    """A channel to `host:port` for the running event loop. Connects on first use.

    With `security`, only a process of `role` (called `name`, if given) can answer there. Without: plaintext.
    """
    if security is None:
        return grpc.aio.insecure_channel(endpoint, options=CLIENT_OPTIONS)
    return grpc.aio.secure_channel(endpoint, security.channel_credentials(), options=_secured(role, name))


def open_blocking_channel(
    endpoint: str, security: TlsIdentity | None = None, role: str = "dispatcher", name: str = ""
) -> grpc.Channel:
    """A channel to `host:port` for threads. Otherwise like `open_channel`."""
    if security is None:
        return grpc.insecure_channel(endpoint, options=CLIENT_OPTIONS)
    return grpc.secure_channel(endpoint, security.channel_credentials(), options=_secured(role, name))


def _secured(role: str, name: str) -> list[tuple[str, int | str]]:
    # Not the host's name: hosts change, and any process on them could answer.
    return [*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", server_name(role, name))]
