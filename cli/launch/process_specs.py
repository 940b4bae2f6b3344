"""Which processes make a cluster, and with which command lines: pure, from the options and the claimed ports."""

import sys
from dataclasses import dataclass

from cli.launch.certificates import tls_dir
from cli.launch.options import UpOptions
from cli.launch.ports import endpoint


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """Ports that stay the same when the process behind them restarts. `http` and `grpc`: one per dispatcher."""

    http: tuple[int, ...]
    grpc: tuple[int, ...]
    monitor: int
    metrics: int


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to keep running: `name` is also its log's name."""

    name: str
    role: str
    command: tuple[str, ...]


def service_specs(
    options: UpOptions, ports: ClusterPorts, etcd: str, node: str, parent_pid: int
) -> tuple[ProcessSpec, ...]:
    """Every service, those that others report to first."""
    nodes = node_names(node, options.nodes)
    common = (*_etcd(options, etcd), "--data-dir", str(options.data_dir), "--parent-pid", str(parent_pid))
    common += _settings(options)

    def spec(role: str, number: int, port: int, *flags: str) -> ProcessSpec:
        name, place = f"{role.replace('_', '-')}-{number}", nodes[number % len(nodes)]
        # -P: a folder called `services` where the user happens to stand must not shadow ours.
        start = (
            sys.executable,
            "-P",
            "-m",
            f"services.{role}",
            "--name",
            name,
            "--listen",
            endpoint(options.host, port),
        )
        secured = ("--tls-dir", str(tls_dir(options.data_dir, name))) if options.tls else ()
        return ProcessSpec(name, role, (*start, "--node", place, *common, *secured, *flags))

    return (
        spec("monitor", 0, ports.monitor, "--metrics-port", str(ports.metrics)),
        *(spec("global_manager", i, 0) for i in range(options.managers)),
        *(spec("kvstore", i, 0) for i in range(options.nodes)),
        *(spec("dispatcher", i, ports.grpc[i], *_doors(options, i, ports.http[i])) for i in range(options.dispatchers)),
        *(spec("instance", i, 0) for i in range(options.instances)),
    )


def node_names(node: str, count: int) -> tuple[str, ...]:
    """This machine's name, or names of the parts that play nodes of their own."""
    return (node,) if count == 1 else tuple(f"{node}-{i}" for i in range(count))


def _etcd(options: UpOptions, endpoints: str) -> tuple[str, ...]:
    """Without a password file the services look for the password in the environment, which they inherit."""
    flags = ["--etcd", endpoints]
    if options.etcd_user:
        flags += ["--etcd-user", options.etcd_user]
    if options.etcd_password_file is not None:
        flags += ["--etcd-password-file", str(options.etcd_password_file)]
    return tuple(flags)


def _settings(options: UpOptions) -> tuple[str, ...]:
    """One word each: a value may begin with a dash."""
    files = (f"--config={path}" for path in options.config)
    return (*files, *(f"--set={word}" for word in options.words))


def _doors(options: UpOptions, number: int, http_port: int) -> tuple[str, ...]:
    file = options.data_dir / "logs" / f"dispatcher-{number}.access.jsonl"
    log = ("--access-log", str(file)) if options.access_log else ()
    return ("--http", endpoint(options.host, http_port), *log)
