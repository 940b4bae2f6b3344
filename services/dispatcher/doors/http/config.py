"""What the HTTP door is told at start. Knows no HTTP server."""

from dataclasses import dataclass

from dunlin.auth.web_origins import is_origin, origin_error
from dunlin.config.fields import check, setting
from dunlin.limits import MOST_BODY_BYTES


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Limits of the HTTP door. The simulator has no doors."""

    max_body_bytes: int = setting(
        MOST_BODY_BYTES,
        "The longest body, before and after it is decompressed; a longer one gets 413.",
        unit="bytes",
        least=1,
        why="the longest prompt that any model here takes, as text",
    )
    body_timeout_s: float = setting(
        30.0, "A body must be complete within this time; else 408.", unit="seconds", above=0, why="8 MiB at 2.2 Mbit/s"
    )
    max_connections: int = setting(
        4096,
        "Connections open at once, those that shake hands for TLS included; one more is answered 503.",
        unit="connections",
        least=1,
        why="a few kilobytes each; the limit of open files bounds them too",
    )
    header_timeout_s: float = setting(
        10.0,
        "The TLS handshake, then the head of each request, must each be complete so long after it began; else 408.",
        unit="seconds",
        above=0,
        why="far longer than an honest client needs",
    )
    idle_timeout_s: float = setting(
        75.0,
        "A connection may be silent for so long between two requests. Set it longer than your load balancer's.",
        unit="seconds",
        above=0,
        why="load balancers commonly close idle connections after 60 s",
    )
    write_timeout_s: float = setting(
        60.0,
        "A client that does not read loses its connection when what waits for it has not gone down for so long.",
        unit="seconds",
        above=0,
        why="a reader that is only slow reads something in a minute",
    )
    origins: tuple[str, ...] = setting(
        (),
        "Origins of web pages that may ask (CORS), such as https://chat.example.com; `*` for all.",
        why="no page of the web may use a server just because a browser reaches it",
    )

    def __post_init__(self) -> None:
        check(self)
        for origin in self.origins:
            if not is_origin(origin):
                raise ValueError(origin_error(origin))
