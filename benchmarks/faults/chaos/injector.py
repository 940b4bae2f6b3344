"""The faults of a live run by the campaign's names: strikes each in a task of its own, and recovers them all."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.faults.chaos.cluster import LiveCluster
from benchmarks.faults.chaos.processes import ProcessFaults
from benchmarks.faults.chaos.surroundings import EtcdFaults, NetworkFaults, OperatorFaults
from benchmarks.harness.report import say
from dunlin.client import AsyncClient
from dunlin.membership.client import EtcdClient
from simulator.campaign.plans import Fault

GROUPS = (ProcessFaults, NetworkFaults, EtcdFaults, OperatorFaults)
FaultAction = Callable[[Fault], Coroutine[Any, Any, str]]


class LiveFaultInjector:
    """`struck` counts faults by kind, `void` those that were impossible; `broken`: those that failed themselves."""

    def __init__(self, cluster: LiveCluster, client: AsyncClient, etcd: EtcdClient, now_s: Callable[[], float]) -> None:
        self.struck: Counter[str] = Counter()
        self.void: Counter[str] = Counter()
        self.broken: list[str] = []
        self._now_s = now_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._actions: dict[str, FaultAction] = {}
        self.operators = OperatorFaults(cluster, client)
        for group in (ProcessFaults(cluster), NetworkFaults(cluster), EtcdFaults(cluster, etcd), self.operators):
            self._actions |= {kind: getattr(group, f"do_{kind}") for kind in kinds_of(type(group))}

    def strike(self, fault: Fault) -> None:
        """Strike a fault; it recovers by itself."""
        task = asyncio.create_task(self._strike(fault))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def all_recovered(self) -> None:
        """Wait until each fault has recovered."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Recover all faults now."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _strike(self, fault: Fault) -> None:
        began_s = self._now_s()
        try:
            victim = await self._actions[fault.kind](fault)
        except Exception as error:
            self.broken.append(f"fault {fault}: {type(error).__name__}: {error}")
            return
        (self.struck if victim else self.void)[fault.kind] += 1
        if victim:
            say(f"{began_s:7.1f} s to {self._now_s():.1f} s: {fault.kind} {victim}")


def kinds_of(group: type) -> list[str]:
    """The kinds of the faults that a class strikes."""
    return [name.removeprefix("do_") for name in vars(group) if name.startswith("do_")]
