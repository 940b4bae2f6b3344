"""What `dunlin up` is told: one frozen object from the command line down. Reads no environment but the core count."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from dunlin.launch.restarts import RestartPolicy


@dataclass(frozen=True, slots=True)
class UpOptions:
    """One cluster on this machine.

    Port 0 means any; further dispatchers get the ports after the first one's. `nodes` above 1 plays several machines on
    this one: each has a kvstore of its own, and the instances are spread over them. `slots`, `tier_mib`,
    `checkpoint_share`, `prefill_share` and `max_wait_s` None leave the choice to the services. `etcd` empty means an
    embedded one. `model_name` is what clients call the model, empty for the name of its folder. `transport` is how KV
    goes between nodes. `threads` 0 shares the cores among the instances. `tls` makes a CA and certificates under the
    data directory; `keys` is the file of the tenants' API keys. `access_log` makes
    each dispatcher write one beside its log. `cors` are the origins of web pages that may ask over HTTP.
    """

    data_dir: Path
    instances: int = 2
    dispatchers: int = 1
    managers: int = 1
    nodes: int = 1
    model: str = "builtin:tiny"
    model_name: str = ""
    dtype: str = "fp32"
    preset: str = "chunked"
    prefill_share: float | None = None
    deterministic: bool = False
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 7070
    etcd: str = ""
    etcd_user: str = ""
    otlp: str = ""
    etcd_password_file: Path | None = None
    tls: bool = False
    keys: Path | None = None
    access_log: bool = False
    cors: tuple[str, ...] = ()
    slots: int | None = None
    tier_mib: int | None = None
    checkpoint_share: float | None = None
    max_wait_s: float | None = None
    replicate: bool = False
    transport: str = "auto"
    prefix_reuse: bool = True
    threads: int = 0
    ready_timeout_s: float = 180.0
    stop_grace_s: float = 8.0
    restart: RestartPolicy = field(default_factory=RestartPolicy)

    def threads_each(self) -> int:
        """Compute threads of one instance. One core is left to the services: a compute thread that has to wait for a
        core makes all the others of its engine wait with it.
        """
        return self.threads or max(1, (len(os.sched_getaffinity(0)) - 1) // self.instances)
