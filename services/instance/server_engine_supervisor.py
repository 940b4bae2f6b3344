"""Keeps one engine running: starts it, has another stand by, reports how each ended, and starts the next.

Knows no message between core and engine.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dunlin.effects import Address
from dunlin.engine.device.names import CPU, granule_bytes
from dunlin.engine.process.options import ENGINE_MODULE, EngineOptions
from dunlin.engine.process.progress_page import ProgressPage
from dunlin.engine.remote.options import HelperOptions
from dunlin.engine.transfer.peer_rooms import PeerRoomTable
from dunlin.messages.engine import EngineExited, EngineProgress, EngineReady
from dunlin.runtime.child_exit import RunningProcess
from dunlin.runtime.core_host import CoreHost
from dunlin.runtime.fork_server.client import ForkServer
from services.instance.server_engine_process import EngineProcess
from services.instance.server_transfer_helper import HelperStarter

_log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 0.1
BACKOFF_MAX_S = 10.0
HEALTHY_S = 1.0
"""After an engine that served for so long the next one starts at once, seconds."""
STANDBY_AFTER_S = 1.0
"""The standby is started so long after an engine is ready, seconds."""
ACTIVATE_S = 0.5
"""Expected duration from the command until a standby is ready, before one was measured, seconds."""


@dataclass(frozen=True, slots=True)
class EngineLaunchSettings:
    """Settings of every engine process of this instance. `dtype` is `float32` or `bfloat16`; `narrow_kv`: see
    `EngineOptions`.

    `standby`: another process is loaded and warmed up in advance, at the cost of its memory without weights and KV.
    `module` is what `python -m` runs. `helper` are the options of the process that exchanges KV with engines of other
    nodes than `node`; None: there is none. `adapters`, `device`, `ranks`: as in `EngineOptions`; the ranks share the
    `threads`. `kv_bytes` 0: the first engine finds them by `gpu_share`, `step_tokens` and `step_rows`, and those after
    it have as many slots.
    """

    model: Path
    kv_bytes: int
    dtype: str = "float32"
    narrow_kv: str = ""
    deterministic: bool = False
    threads: int = 1
    standby: bool = False
    module: str = ENGINE_MODULE
    node: str = ""
    helper: HelperOptions | None = None
    adapters: tuple[str, ...] = ()
    device: str = CPU
    ranks: int = 1
    gpu_share: float = 0.0
    step_tokens: int = 0
    step_rows: int = 0


@dataclass(slots=True)
class StartTimes:
    """Time from the start of an engine, or from its command to serve, until it is ready; as last measured, seconds."""

    cold_s: float = 0.0
    take_over_s: float = ACTIVATE_S


class EngineProcessSupervisor:
    """Owns the ranks' arenas and the progress page, which outlive each engine, and the processes.

    Every process has an incarnation of its own, counted from 1.
    """

    def __init__(
        self, host: CoreHost, settings: EngineLaunchSettings, forks: ForkServer, cannot_start: Callable[[str], None]
    ) -> None:
        self._host = host
        self._forks = forks
        self._helpers = HelperStarter(settings.helper, forks) if settings.helper is not None else None
        self._settings = settings
        self._cannot_start = cannot_start
        self._engine = Address("engine", host.address.name)
        self._arena_fds = [os.memfd_create("dunlin-arena") for _ in range(settings.ranks)]
        self._progress_fd = os.memfd_create("dunlin-progress")
        self._page = ProgressPage(self._progress_fd)
        self._rooms = PeerRoomTable(self._progress_fd)
        self._incarnation = 0
        self._processes: list[RunningProcess] = []
        self._standby: EngineProcess | None = None
        self._start_times = StartTimes()
        self._kv_bytes = settings.kv_bytes

    async def run(self) -> None:
        """Keep an engine running until cancelled. One that never got ready is the start's failure."""
        failures, ever_ready = 0, False
        while True:
            child, lived_s = await self._run_one(failures)
            ever_ready |= child.was_ready
            if not ever_ready:
                self._cannot_start(child.failure or f"the engine ended before it was ready: {child.lost.result()}")
                return
            failures = 0 if lived_s >= HEALTHY_S else failures + 1
            delay_s = _delay_s(failures)
            _log.error("the engine ended (%s); the next one starts in %.2f s", child.lost.result(), delay_s)
            await asyncio.sleep(delay_s)

    async def report_progress(self) -> None:
        """Send the safepoint counter to the core at intervals, until cancelled."""
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            self._host.deliver(self._engine, EngineProgress(self._page.passed))

    def standby(self) -> EngineProcess | None:
        """The process that stands by, or is being prepared for it; None without one."""
        return None if self._standby is None or self._standby.lost.done() else self._standby

    def close(self) -> None:
        """End the engine processes and free the arenas."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for fd in self._arena_fds:
            os.close(fd)

    async def _run_one(self, failures: int) -> tuple[EngineProcess, float]:
        """An engine from its start to its end, and for how long it served."""
        loop = asyncio.get_running_loop()
        child, stood_by = await self._next()
        began_s = loop.time()
        child.activate(stood_by)
        beside = [asyncio.create_task(work) for work in (self._start_standby(child), child.peers.run())]
        beside[1].add_done_callback(self._host.crash_on_error)
        try:
            reason = await child.lost
        finally:
            self._remember_kv(child)
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        lived_s = loop.time() - child.ready.result() if child.was_ready else 0.0
        if child.was_ready:
            self._measure(child.ready.result() - began_s, stood_by)
        exited = await child.exited(self._back_in_s(0 if lived_s >= HEALTHY_S else failures + 1))
        how = exit_description(exited)
        if exited is not None:
            self._host.deliver(self._engine, exited)
        self._host.detach(self._engine, f"{child.failure} ({how})" if child.failure else how, child)
        child.peers.close()
        _log.info("engine %d: %s, %s", child.pid, reason, how)
        self._processes = [process for process in self._processes if process.poll() is None]
        return child, lived_s

    async def _next(self) -> tuple[EngineProcess, bool]:
        """The standby process, if it still runs, else a new one."""
        child, self._standby = self.standby(), None
        return (await self._start(standby=False), False) if child is None else (child, True)

    async def _start_standby(self, child: EngineProcess) -> None:
        if self._settings.standby:
            await asyncio.shield(child.ready)
            await asyncio.sleep(STANDBY_AFTER_S)
            self._remember_kv(child)
            if self.standby() is None:
                self._standby = await self._start(standby=True)

    def _remember_kv(self, child: EngineProcess) -> None:
        """The next engine gets as much KV, whatever is free by then: the core goes on with the same slots."""
        if not self._kv_bytes and child.sizes is not None:
            self._kv_bytes = kv_bytes_of(child.sizes, granule_bytes(self._settings.device))

    def _measure(self, seconds: float, stood_by: bool) -> None:
        if stood_by:
            self._start_times.take_over_s = seconds
        else:
            self._start_times.cold_s = seconds

    def _back_in_s(self, failures: int) -> float:
        """When the next engine should be ready."""
        standby = self.standby()
        prepared = standby is not None and standby.is_prepared
        return _delay_s(failures) + (self._start_times.take_over_s if prepared else self._start_times.cold_s)

    async def _start(self, *, standby: bool) -> EngineProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._incarnation = incarnation = self._incarnation + 1
        # In a thread: the first waits until the server has loaded torch. A process that nothing waits for any more ends
        # when `ours` is closed.
        process = await asyncio.to_thread(self._spawn, theirs, incarnation, standby)
        child = EngineProcess(self._host, self._engine, process, incarnation, self._page, self._rooms, self._helpers)
        await asyncio.get_running_loop().create_connection(lambda: child, sock=ours)
        return child

    def _spawn(self, theirs: socket.socket, incarnation: int, standby: bool) -> RunningProcess:
        with theirs:
            options = self._options(theirs.fileno(), incarnation, standby)
            command, environment = options.command(self._settings.module), options.environment(os.environ)
            process = self._forks.spawn(command, environment, fds=options.fds)
        self._processes.append(process)
        return process

    def _options(self, socket_fd: int, incarnation: int, standby: bool) -> EngineOptions:
        settings = self._settings
        return EngineOptions(
            model=settings.model,
            name=self._host.address.name,
            incarnation=incarnation,
            parent_pid=os.getpid(),
            socket_fd=socket_fd,
            arena_fd=self._arena_fds[0],
            progress_fd=self._progress_fd,
            kv_bytes=self._kv_bytes,
            dtype=settings.dtype,
            narrow_kv=settings.narrow_kv,
            deterministic=settings.deterministic,
            threads=max(settings.threads // settings.ranks, 1),
            node=settings.node,
            standby=standby,
            adapters=settings.adapters,
            device=settings.device,
            ranks=settings.ranks,
            rank_arena_fds=tuple(self._arena_fds[1:]),
            gpu_share=settings.gpu_share,
            step_tokens=settings.step_tokens,
            step_rows=settings.step_rows,
        )


def kv_bytes_of(ready: EngineReady, granule_bytes: int) -> int:
    """The least KV, in bytes over all layers, that gives an engine as many slots as this one said that it has."""
    slot_bytes = ready.kv_bytes_per_token // ready.model_layers
    return ready.model_layers * -(-ready.slots * slot_bytes // granule_bytes) * granule_bytes


def exit_description(exited: EngineExited | None) -> str:
    """In words, for reasons and logs; None: it went on, and said what is no message."""
    if exited is None:
        return "it spoke nonsense"
    if not exited.signal:
        return f"exit code {exited.code}"
    try:
        return f"ended by {signal.Signals(exited.signal).name}"
    except ValueError:  # a real-time signal, which has no name
        return f"ended by signal {exited.signal}"


def _delay_s(failures: int) -> float:
    """The pause before the next engine, after `failures` in a row that hardly served."""
    return min(2.0**failures / 8, BACKOFF_MAX_S) if failures else 0.0
