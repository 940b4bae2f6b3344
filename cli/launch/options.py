"""What `dunlin up` is told: one frozen object from the command line down. Reads no environment but the core count."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from cli.launch.restart_policy import RestartPolicy
from dunlin.config.resolve import Settings


@dataclass(frozen=True, slots=True)
class UpOptions:
    """One cluster on this machine.

    `settings` is what holds for all services; each is given `config` (files) and `words` (`NAME=VALUE`, as for `--set`)
    and the environment, from which the same follows. Port 0 means any; further dispatchers get the ports after the
    first one's. `nodes` above 1 plays several machines on this one: each has a kvstore of its own, and the instances
    are spread over them. `etcd` empty means an embedded one. `tls` makes a CA and certificates under the data
    directory. `access_log` makes each dispatcher write one beside its log.
    """

    data_dir: Path
    settings: Settings
    config: tuple[Path, ...] = ()
    words: tuple[str, ...] = ()
    instances: int = 2
    dispatchers: int = 1
    managers: int = 1
    nodes: int = 1
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 7070
    etcd: str = ""
    etcd_user: str = ""
    etcd_password_file: Path | None = None
    tls: bool = False
    access_log: bool = False
    ready_timeout_s: float = 180.0
    stop_grace_s: float = 8.0
    restart: RestartPolicy = field(default_factory=RestartPolicy)


def shared_threads(instances: int) -> int:
    """Compute threads of each of so many instances on this machine. One core is left to the services: a compute thread
    that has to wait for a core makes all the others of its engine wait with it.
    """
    return max(1, (len(os.sched_getaffinity(0)) - 1) // instances)
