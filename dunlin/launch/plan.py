"""Which processes make a cluster, and with which command lines: pure, from the options and the claimed ports."""

import sys
from dataclasses import dataclass

from dunlin.launch.certificates import tls_dir
from dunlin.launch.options import UpOptions
from dunlin.launch.ports import endpoint


@dataclass(frozen=True, slots=True)
class Ports:
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


def service_specs(options: UpOptions, ports: Ports, etcd: str, node: str, parent_pid: int) -> tuple[ProcessSpec, ...]:
    """Every service, those that others report to first."""
    nodes = node_names(node, options.nodes)
    common = (*_etcd(options, etcd), "--data-dir", str(options.data_dir), "--parent-pid", str(parent_pid))

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
        spec("monitor", 0, ports.monitor, "--metrics-port", str(ports.metrics), *_otlp(options)),
        *(spec("global_manager", i, 0, *_manager(options)) for i in range(options.managers)),
        *(spec("kvstore", i, 0, *_tier(options)) for i in range(options.nodes)),
        *(
            spec("dispatcher", i, ports.grpc[i], "--preset", options.preset, *_doors(options, i, ports.http[i]))
            for i in range(options.dispatchers)
        ),
        *(spec("instance", i, 0, *_instance(options)) for i in range(options.instances)),
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


def _otlp(options: UpOptions) -> tuple[str, ...]:
    return ("--otlp", options.otlp) if options.otlp else ()


def _manager(options: UpOptions) -> tuple[str, ...]:
    share = () if options.prefill_share is None else ("--prefill-share", str(options.prefill_share))
    return ("--preset", options.preset, *share)


def _doors(options: UpOptions, number: int, http_port: int) -> tuple[str, ...]:
    keys = () if options.keys is None else ("--keys", str(options.keys.absolute()))
    cors = tuple(f"--cors={origin}" for origin in options.cors)
    most = () if options.max_wait_s is None else ("--max-wait-s", str(options.max_wait_s))
    # One word: a name may begin with a dash.
    name = (f"--model-name={options.model_name}",) if options.model_name else ()
    file = options.data_dir / "logs" / f"dispatcher-{number}.access.jsonl"
    log = ("--access-log", str(file)) if options.access_log else ()
    return ("--http", endpoint(options.host, http_port), "--model", options.model, *name, *keys, *cors, *most, *log)


def _tier(options: UpOptions) -> tuple[str, ...]:
    size = () if options.tier_mib is None else ("--tier-bytes", str(options.tier_mib << 20))
    return (*size, "--transport", options.transport, *(("--replicate",) if options.replicate else ()))


def _instance(options: UpOptions) -> tuple[str, ...]:
    flags = ["--model", options.model, "--dtype", options.dtype, "--preset", options.preset]
    flags += ["--threads", str(options.threads_each())]
    if options.slots is not None:
        flags += ["--slots", str(options.slots)]
    if options.checkpoint_share is not None:
        flags += ["--checkpoint-share", str(options.checkpoint_share)]
    if not options.prefix_reuse:
        flags.append("--no-prefix-reuse")
    if options.deterministic:
        flags.append("--deterministic")
    return tuple(flags)
