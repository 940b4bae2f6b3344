"""`dunlin up` from the first check to the last process: the order of starting, waiting and stopping.

Knows which services there are and how a cluster is asked; how a process is kept running is the supervisor's.
"""

import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

import dunlin
from cli.launch import preflight
from cli.launch.certificates import CLIENT, issue_cluster_certificates, tls_dir
from cli.launch.child_process import last_line
from cli.launch.cluster_state import ClusterState, DataDirLock, write_launch_file, write_state
from cli.launch.errors import LaunchError
from cli.launch.memory import memory_lines, slots_of
from cli.launch.options import UpOptions
from cli.launch.ports import claim_port, claim_ports, endpoint
from cli.launch.process_specs import ClusterPorts, ProcessSpec, service_specs
from cli.launch.process_starter import ProcessStarter
from cli.launch.readiness import Readiness, check_readiness, http_answers
from cli.launch.ready_message import hints, ready_line
from cli.launch.status_query import query_status
from cli.launch.supervisor import StatusPrinter, Supervisor
from dunlin.config.show import as_toml
from dunlin.messages.fleet import FleetStatus
from dunlin.model.builtin import served_name
from dunlin.wire.security import TlsIdentity

SETTINGS_FILE = "settings.toml"
"""In the data directory: what holds in the cluster, and where it came from."""
_ETCD = "etcd"
_TICK_S = 0.1
_ETCD_WAIT_S = 20.0
_PROBE_EVERY_S = 0.3


class StopRequest:
    """SIGINT or SIGTERM came. A second one makes the shutdown impatient."""

    def __init__(self) -> None:
        # No Event: a handler that interrupts its `wait` where that has the Event's lock would wait for it for ever.
        self._heard_of: SimpleQueue[None] = SimpleQueue()
        self.signals = 0

    def install(self) -> None:
        """Listen. From the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1
        self._heard_of.put(None)

    def wait(self, seconds: float) -> bool:
        """Sleep, less when asked to stop; whether that was so."""
        with suppress(Empty):
            if not self.signals:
                self._heard_of.get(timeout=seconds)
        return self.signals > 0


class LocalCluster:
    """One run of `dunlin up`. Owns the data directory and, through supervisors, every process."""

    def __init__(self, options: UpOptions, data_dir: DataDirLock, stop: StopRequest, say: StatusPrinter) -> None:
        self.options = options
        self._dir = data_dir
        self._stop = stop
        self._say = say
        self._ports = self._claim()
        self._starter = ProcessStarter(_environment())
        self._supervisors: list[Supervisor] = []
        self._context: ssl.SSLContext | None = None
        self.etcd = options.etcd

    def _claim(self) -> ClusterPorts:
        host, options = self.options.host, self.options
        http = claim_ports(host, options.http_port, options.dispatchers, "the HTTP door")
        grpc = claim_ports(host, options.grpc_port, options.dispatchers, "the gRPC door", http)
        if set(http) & set(grpc):
            raise LaunchError(
                f"--http-port {http[0]} and --grpc-port {grpc[0]} meet; choose two further apart "
                f"(each dispatcher takes one port more)"
            )
        monitor = claim_port(host, 0, "the monitor", {*http, *grpc})
        return ClusterPorts(http, grpc, monitor, claim_port(host, 0, "the metrics", {*http, *grpc, monitor}))

    def start(self) -> bool:
        """Start everything and wait until it can serve. False when asked to stop meanwhile. Raises LaunchError."""
        if self.options.tls:
            self._secure()
        if not self.etcd and not self._start_etcd():
            return False
        if not self._until(self._starters, self.options.ready_timeout_s):
            return False
        specs = self._specs()
        self._supervise(specs)
        names = tuple(spec.name for spec in specs if spec.role == "instance")
        return self._until(lambda: self._probe(names), self.options.ready_timeout_s)

    def _specs(self) -> tuple[ProcessSpec, ...]:
        return service_specs(self.options, self._ports, self.etcd, socket.gethostname(), os.getpid())

    def _secure(self) -> None:
        processes = [(spec.role, spec.name) for spec in self._specs()]
        issue_cluster_certificates(self._dir.path, self.options.host, [*processes, (_ETCD, _ETCD)])
        self._context = TlsIdentity.load(tls_dir(self._dir.path, CLIENT)).client_context()

    def _supervise(self, specs: Sequence[ProcessSpec]) -> None:
        supervisor = Supervisor(specs, self._dir, self._starter.start, self.options.restart, self._say)
        # Before the first start: a failure half way must still find, and end, what was started.
        self._supervisors.append(supervisor)
        supervisor.start()

    def _start_etcd(self) -> bool:
        # Nothing listens yet at doors that were named.
        spec, port = _etcd_spec(self.options, {*self._ports.http, *self._ports.grpc})
        self.etcd = f"127.0.0.1:{port}"
        self._supervise([spec])
        health = f"{self._scheme}://{self.etcd}/health"
        return self._until(lambda: Readiness(() if http_answers(health, self._context) else ("etcd",)), _ETCD_WAIT_S)

    def _starters(self) -> Readiness:
        return Readiness(() if self._starter.is_ready() else ("fork servers",))

    def _probe(self, names: tuple[str, ...]) -> Readiness:
        doors_answer = all(http_answers(f"{url}/health", self._context) for url in self._urls())
        return check_readiness(self._status(), names, doors_answer)

    def _status(self) -> FleetStatus | None:
        return query_status(self._endpoints()[0], self._monitor(), self._client_dir())

    def memory(self) -> Iterator[str]:
        """What instances have, each a line."""
        return memory_lines(self.options.settings, self._dir.path, slots_of(self._status()))

    def _until(self, look: Callable[[], Readiness], limit_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        while not self._stop.wait(_PROBE_EVERY_S):
            for supervisor in self._supervisors:
                supervisor.check_start()
            self._tick()
            seen = look()
            if seen.ready:
                return True
            if time.monotonic() > deadline_s:
                raise LaunchError(self._too_late(seen, limit_s))
        return False

    def _too_late(self, seen: Readiness, limit_s: float) -> str:
        first = next((name for name in seen.missing if self._dir.log(name).exists()), "")
        said = f"; {first} last said: {last_line(self._dir.log(first))}" if first else ""
        missing = ", ".join(seen.missing)
        return f"not ready after {limit_s:g} s, missing: {missing}{said}; logs are in {self._dir.path / 'logs'}"

    def _endpoints(self) -> list[str]:
        return [self._endpoint(port) for port in self._ports.grpc]

    def _urls(self) -> list[str]:
        return [f"{self._scheme}://{self._endpoint(port)}" for port in self._ports.http]

    def _monitor(self) -> str:
        return self._endpoint(self._ports.monitor)

    def _endpoint(self, port: int) -> str:
        return endpoint(_reachable(self.options.host), port)

    @property
    def _scheme(self) -> str:
        return "https" if self.options.tls else "http"

    def _client_dir(self) -> Path | None:
        return tls_dir(self._dir.path, CLIENT) if self.options.tls else None

    def state(self) -> ClusterState:
        """What other commands need to find this cluster."""
        options = self.options
        return ClusterState(
            pid=os.getpid(),
            http=",".join(self._urls()),
            grpc=",".join(self._endpoints()),
            monitor=self._monitor(),
            metrics=f"http://{self._endpoint(self._ports.metrics)}/metrics",
            etcd=self.etcd,
            data_dir=str(self._dir.path),
            model=options.settings["cluster.model"],
            instances=options.instances,
            deterministic=options.settings["instance.engine.deterministic"],
            started_at_s=time.time(),
            tls_dir=str(self._client_dir() or ""),
            preset=options.settings["cluster.preset"],
            model_name=served_name(options.settings["cluster.model"], options.settings["cluster.model_name"]),
        )

    def _tick(self) -> None:
        for supervisor in self._supervisors:
            supervisor.tick()

    def watch(self) -> None:
        """Keep it running until asked to stop."""
        while not self._stop.wait(_TICK_S):
            self._tick()

    def close(self) -> None:
        """End every process, etcd last."""
        for supervisor in reversed(self._supervisors):
            supervisor.stop(self.options.stop_grace_s, lambda: self._stop.signals > 1)
        self._starter.close()


def run_local_cluster(options: UpOptions) -> int:
    """Run a cluster in the foreground; the exit code. One line on stdout, starting with `ready`, once it can serve.

    Raises LaunchError when it cannot start; no process is left behind in any case.
    """
    stop = StopRequest()
    stop.install()
    preflight.check_options(options)
    data_dir = DataDirLock(options.data_dir)
    try:
        return _run(LocalCluster(options, data_dir, stop, _say), data_dir)
    finally:
        data_dir.close()


def _run(cluster: LocalCluster, data_dir: DataDirLock) -> int:
    options = cluster.options
    several = "s" if options.instances > 1 else ""
    model = options.settings["cluster.model"]
    write_launch_file(data_dir.path / SETTINGS_FILE, as_toml(options.settings) + "\n")
    _say(f"starting {options.instances} instance{several} of {model}; logs in {data_dir.path / 'logs'}")
    try:
        if cluster.start():
            state = cluster.state()
            write_state(state)
            print(ready_line(state), flush=True)
            for hint in hints(state, options.host, bool(options.settings["dispatcher.tenants.keys_file"])):
                _say(hint)
            for line in cluster.memory():
                _say(line)
            cluster.watch()
        _say("stopping")
        return 0
    finally:
        cluster.close()


def _say(text: str) -> None:
    print(f"dunlin up: {text}", file=sys.stderr, flush=True)


def _reachable(host: str) -> str:
    """An address that this machine itself can connect to when the services listen on all of its."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _etcd_spec(options: UpOptions, taken: set[int]) -> tuple[ProcessSpec, int]:
    from dunlin.membership.embedded import EmbeddedConfig, command
    from dunlin.membership.errors import EtcdStartError
    from dunlin.runtime.parent_death import die_with_parent_command

    client = claim_port("127.0.0.1", 0, "etcd", taken)
    peer = claim_port("127.0.0.1", 0, "etcd's peer port", {client, *taken})
    try:
        certificates = tls_dir(options.data_dir, _ETCD) if options.tls else None
        line = command(EmbeddedConfig(options.data_dir, client, peer, tls_dir=certificates))
    except EtcdStartError as error:
        raise LaunchError(str(error)) from None
    return ProcessSpec(_ETCD, _ETCD, tuple(die_with_parent_command(line, os.getpid()))), client


def _environment() -> dict[str, str]:
    """For the children: our code first on the path, no settings of another etcd, output as it is written."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    root = str(Path(dunlin.__file__).resolve().parent.parent)
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    kept["PYTHONUNBUFFERED"] = "1"
    return kept
