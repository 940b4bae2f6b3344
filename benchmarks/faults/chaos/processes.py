"""Faults of live processes: signals to services and their engines."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from benchmarks.faults.chaos.cluster import LiveCluster, is_running
from benchmarks.harness.processes import gone
from cli.launch.supervisor import SupervisedProcess
from simulator.campaign.plans import Fault

SLICE_S = 0.02
"""Seconds for which a slow process runs at a time."""


class ProcessFaults:
    """Each fault is a coroutine that strikes, recovers and returns its victim's name; empty: it was impossible."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster
        self._held: set[int] = set()

    async def do_kill_instance(self, fault: Fault) -> str:
        """SIGKILL; the supervisor starts a successor."""
        return self._kill("instance", fault, least=2)

    async def do_kill_dispatcher(self, fault: Fault) -> str:
        """SIGKILL; clients resume at the other one."""
        return self._kill("dispatcher", fault)

    async def do_kill_kvstore(self, fault: Fault) -> str:
        """SIGKILL: the node's host tier is gone."""
        return self._kill("kvstore", fault)

    async def do_kill_monitor(self, fault: Fault) -> str:
        """SIGKILL: the last view ages."""
        return self._kill("monitor", fault)

    async def do_kill_manager(self, fault: Fault) -> str:
        """SIGKILL, of the leader or of the other."""
        return self._kill("global_manager", fault)

    async def do_pause_instance(self, fault: Fault) -> str:
        """SIGSTOP; its engine runs on."""
        return await self._pause("instance", fault)

    async def do_pause_dispatcher(self, fault: Fault) -> str:
        """SIGSTOP."""
        return await self._pause("dispatcher", fault)

    async def do_pause_kvstore(self, fault: Fault) -> str:
        """SIGSTOP."""
        return await self._pause("kvstore", fault)

    async def do_pause_monitor(self, fault: Fault) -> str:
        """SIGSTOP."""
        return await self._pause("monitor", fault)

    async def do_pause_manager(self, fault: Fault) -> str:
        """SIGSTOP, long enough for a lease to run out or not."""
        return await self._pause("global_manager", fault)

    async def do_outlive(self, fault: Fault) -> str:
        """A process stops and is replaced; it resumes beside its successor, and is killed later. Of roles without a
        fixed port: the successor of another could not listen. One that has not registered yet is let be: it would do so
        after its successor, and be the younger of the two.
        """
        victim = self._of_role(("kvstore", "global_manager")[int(fault.other * 2)], fault.pick)
        old = victim.child if victim is not None else None
        if victim is None or old is None or old.pid in self._held or not has_registered(victim.log.read_text()):
            return ""
        self._cluster.killed.add(old.pid)
        async with self._stopped(old.pid):
            await asyncio.sleep(min(0.3, fault.lasts_s))
            if old.exited():
                return ""
            victim.start(time.monotonic())
            await asyncio.sleep(0.5 + fault.lasts_s)
        await asyncio.sleep(2.0)
        old.kill()
        old.exited()
        return victim.spec.name

    async def do_slow_process(self, fault: Fault) -> str:
        """A process runs for moments alone."""
        there = [one for one in self._cluster.processes if is_running(one)]
        victim = there[int(fault.pick * len(there))] if there else None
        return await self._slow(victim.spec.name, self._cluster.pid_of(victim), fault) if victim is not None else ""

    async def do_crash_engine(self, fault: Fault) -> str:
        """SIGKILL; the KV cache stays as it was."""
        return self._crash(fault, signal.SIGKILL)

    async def do_wild_engine(self, fault: Fault) -> str:
        """SIGSEGV: the KV cache may hold anything."""
        return self._crash(fault, signal.SIGSEGV)

    async def do_hang_engine(self, fault: Fault) -> str:
        """SIGSTOP, for ever: its instance has to end it."""
        return self._crash(fault, signal.SIGSTOP)

    async def do_slow_engine(self, fault: Fault) -> str:
        """An engine computes for moments alone."""
        name, pid = self._engine(fault)
        return await self._slow(f"engine of {name}", pid, fault) if pid else ""

    async def do_disk_full(self, fault: Fault) -> str:
        """A node's disk is full, and the engine there is killed, so that its successor starts without room."""
        disk = self._cluster.disks[int(fault.pick * len(self._cluster.disks))]
        if disk.is_full:
            return ""
        struck = self._crash(fault, signal.SIGKILL)
        await asyncio.to_thread(disk.fill)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            disk.free()
        return f"{disk.folder.name}, {struck}"

    def _kill(self, role: str, fault: Fault, least: int = 1) -> str:
        victim = self._of_role(role, fault.pick)
        if victim is None or len(self._cluster.of_role(role)) < least:
            return ""
        pid = self._cluster.pid_of(victim)
        self._cluster.killed.add(pid)
        send(pid, signal.SIGKILL)
        return victim.spec.name

    async def _pause(self, role: str, fault: Fault) -> str:
        victim = self._of_role(role, fault.pick)
        if victim is None or (pid := self._cluster.pid_of(victim)) in self._held:
            return ""
        async with self._stopped(pid):
            await asyncio.sleep(fault.lasts_s)
        return victim.spec.name

    def _crash(self, fault: Fault, number: signal.Signals) -> str:
        name, pid = self._engine(fault)
        if pid:
            send(pid, number)
        return f"engine of {name}" if pid else ""

    def _engine(self, fault: Fault) -> tuple[str, int]:
        victim = self._of_role("instance", fault.pick)
        engines = self._cluster.engines_of(victim) if victim is not None else []
        return (victim.spec.name, engines[0]) if victim is not None and engines else ("", 0)

    async def _slow(self, name: str, pid: int, fault: Fault) -> str:
        if pid in self._held:
            return ""
        until_s = time.monotonic() + fault.lasts_s
        while time.monotonic() < until_s and not gone(pid):
            async with self._stopped(pid):
                await asyncio.sleep(10 * SLICE_S * fault.amount)
            await asyncio.sleep(SLICE_S)
        return name

    @asynccontextmanager
    async def _stopped(self, pid: int) -> AsyncIterator[None]:
        self._held.add(pid)
        send(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            self._held.discard(pid)
            send(pid, signal.SIGCONT)

    def _of_role(self, role: str, pick: float) -> SupervisedProcess | None:
        there = self._cluster.of_role(role)
        return there[int(pick * len(there))] if there else None


def has_registered(log: str) -> bool:
    """Whether the process that a log tells of last has registered in etcd."""
    return " is registered: " in log.rpartition(" settings given: ")[2]


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
