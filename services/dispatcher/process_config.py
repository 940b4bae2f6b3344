"""Settings of a dispatcher's process beside those of its core: the doors, the access log, the tenants."""

from dataclasses import dataclass

from dunlin.config.fields import check, section, setting
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.doors.batches.config import BatchesConfig
from services.dispatcher.doors.http.config import HttpConfig


@dataclass(frozen=True, slots=True)
class AccessLogConfig:
    """The log of calls: one JSON line each. The simulator writes none."""

    path: str = setting("", "The file, or `-` for standard output; empty: no log.", why="prompts are private")
    max_bytes: int = setting(
        64 << 20,
        "Bytes of the file; then a new one is begun.",
        unit="bytes",
        least=1,
        why="with the older ones 320 MiB of disk",
    )
    max_old_files: int = setting(4, "Older files that are kept beside it.", unit="files", least=1, why="see max_bytes")
    max_queued: int = setting(
        8192,
        "Lines that wait for the disk; more are dropped and counted.",
        unit="lines",
        least=1,
        why="a slow disk costs lines, never the event loop's time",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class TenantsConfig:
    """Which clients are served. In the simulator all are."""

    keys_file: str = setting(
        "",
        "API keys and quotas of tenants, as `dunlin keys` writes them; empty: every client is served.",
        why="a first look",
    )


@dataclass(frozen=True, slots=True)
class DispatcherProcessConfig(DispatcherConfig):
    """All settings of a dispatcher."""

    http: HttpConfig = section(HttpConfig)
    access_log: AccessLogConfig = section(AccessLogConfig)
    tenants: TenantsConfig = section(TenantsConfig)
    batches: BatchesConfig = section(BatchesConfig)
