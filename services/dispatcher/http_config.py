"""What the HTTP door is told at start. Knows no HTTP server."""

from dataclasses import dataclass

from dunlin.limits import MOST_BODY_BYTES
from dunlin.origins import is_origin, not_an_origin

PERIODS = ("header_timeout_s", "idle_timeout_s", "body_timeout_s", "write_timeout_s")


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Limits of the HTTP door.

    At most `most_connections` are open at once, those that shake hands for TLS included; one more is answered 503. The
    TLS handshake, then the head of the first request, must each be complete `header_timeout_s` after it began; so must
    every later head, and between two requests a connection may be silent for `idle_timeout_s`. A body must come within
    `body_timeout_s` and be at most `most_body_bytes` long, before and after it is decompressed. A client that does not
    read loses its connection when what waits for it has not gone down for `write_timeout_s`. `origins` are the web
    pages that may ask, `*`: all.
    """

    most_body_bytes: int = MOST_BODY_BYTES
    body_timeout_s: float = 30.0
    most_connections: int = 4096
    header_timeout_s: float = 10.0
    idle_timeout_s: float = 75.0
    write_timeout_s: float = 60.0
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("most_body_bytes", "most_connections"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: needs at least 1")
        for name in PERIODS:
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}: needs a positive, finite number of seconds")
        for origin in self.origins:
            if not is_origin(origin):
                raise ValueError(not_an_origin(origin))
