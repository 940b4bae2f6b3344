"""Faults of what live processes stand on: the network between nodes, etcd, and operators' ill-timed acts."""

import asyncio
import signal
import time
from contextlib import suppress

from benchmarks.faults.chaos.cluster import LiveCluster
from benchmarks.faults.chaos.processes import send
from dunlin.client import AsyncClient, DunlinError
from dunlin.membership.client import EtcdClient
from dunlin.membership.errors import EtcdError
from services.global_manager.server import ELECTION_PREFIX
from simulator.campaign.plans import Fault

LONGEST_PAUSE_S = 9.0
"""Seconds, shorter than the keepalive, that a slow cable stays slow."""
SLOWEST_KBIT, FASTEST_KBIT = 64, 512
UNDO_S = 60.0
"""Seconds within which a drain must be undone: the leader may be away."""


class NetworkFaults:
    """Faults of cables between nodes."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._network = cluster.network
        self._busy: set[int] = set()

    async def do_drop(self, fault: Fault) -> str:
        """All connections between two nodes break; what is in flight is lost."""
        one, other = self._pair(fault)
        self._network.break_streams(one, other)
        return f"{one} - {other}"

    async def do_delay(self, fault: Fault) -> str:
        """What goes to a node passes slowly, in order."""
        node, _ = self._pair(fault)
        self._network.slow(node, int(SLOWEST_KBIT + (FASTEST_KBIT - SLOWEST_KBIT) * fault.amount))
        try:
            await asyncio.sleep(min(fault.lasts_s, LONGEST_PAUSE_S))
        finally:
            self._network.hurry(node)
        return f"to {node}"

    async def do_half_open(self, fault: Fault) -> str:
        """One node's connections with another break, and the other does not hear of it."""
        one, other = self._pair(fault)
        self._network.cut(one, other)
        try:
            self._network.break_streams(one, other)
            await asyncio.sleep(fault.lasts_s)
        finally:
            self._network.mend(one, other)
        return f"{one} -> {other}"

    async def do_partition(self, fault: Fault) -> str:
        """A node is alone; if `amount` is small, clients reach it still."""
        node, _ = self._pair(fault)
        others = [other for other in range(len(self._network.hosts)) if other != node]
        if node in self._busy:
            return ""
        self._busy.add(node)
        try:
            self._separate(node, others, fault.amount < 0.5)
            await asyncio.sleep(fault.lasts_s)
        finally:
            self._busy.discard(node)
            self._reunite(node, others)
        return f"{node}{'' if fault.amount < 0.5 else ', from clients too'}"

    def _separate(self, node: int, others: list[int], is_open_to_clients: bool) -> None:
        if not is_open_to_clients:
            return self._network.isolate(node)
        for other in others:
            self._network.cut(node, other)
            self._network.cut(other, node)
        return None

    def _reunite(self, node: int, others: list[int]) -> None:
        self._network.rejoin(node)
        for other in others:
            self._network.mend(node, other)
            self._network.mend(other, node)

    def _pair(self, fault: Fault) -> tuple[int, int]:
        count = len(self._network.hosts)
        one = int(fault.pick * count)
        return one, (one + 1 + int(fault.other * (count - 1))) % count


class EtcdFaults:
    """Faults of the membership and of the election."""

    def __init__(self, cluster: LiveCluster, etcd: EtcdClient) -> None:
        self._cluster = cluster
        self._etcd = etcd

    async def do_etcd_outage(self, fault: Fault) -> str:
        """Two of three members are stopped or killed: there is no quorum. If `other` is small: one, and there is."""
        members = self._cluster.etcd.nodes
        first = int(fault.pick * len(members))
        struck = [members[(first + more) % len(members)] for more in range(1 if fault.other < 0.25 else 2)]
        if self._cluster.stopped_etcd:
            return ""
        self._cluster.stopped_etcd |= {one.name for one in struck}
        try:
            for one in struck:
                one.kill() if fault.amount < 0.5 else send(one.pid, signal.SIGSTOP)
            await asyncio.sleep(fault.lasts_s)
        finally:
            self._cluster.stopped_etcd -= {one.name for one in struck}
            for one in struck:
                one.start() if one.has_ended else send(one.pid, signal.SIGCONT)
        return f"{' and '.join(one.name for one in struck)} {'killed' if fault.amount < 0.5 else 'stopped'}"

    async def do_lose_lease(self, fault: Fault) -> str:
        """The leader's lease is revoked, and it runs on."""
        with suppress(EtcdError):
            found = (await self._etcd.get_prefix(f"{ELECTION_PREFIX}/")).items
            leader = min(found, key=lambda item: item.create_revision, default=None)
            if leader is not None:
                await self._etcd.revoke(leader.lease_id)
                return leader.value.decode()
        return ""

    async def do_watch_reset(self, fault: Fault) -> str:
        """The watch history is compacted."""
        with suppress(EtcdError):
            await self._etcd.compact((await self._etcd.get_prefix(ELECTION_PREFIX)).revision)
            return "etcd"
        return ""


class OperatorFaults:
    """Ill-timed drains."""

    def __init__(self, cluster: LiveCluster, client: AsyncClient) -> None:
        self._cluster = cluster
        self._client = client

    async def do_drain(self, fault: Fault) -> str:
        """An operator drains an instance and undoes it later."""
        return await self._drained(fault, times=1)

    async def do_duplicate(self, fault: Fault) -> str:
        """The same by calls that come twice."""
        return await self._drained(fault, times=2)

    async def _drained(self, fault: Fault, times: int) -> str:
        there = self._cluster.of_role("instance")
        if not there:
            return ""
        name = there[int(fault.pick * len(there))].spec.name
        with suppress(DunlinError):
            for _ in range(times):
                await self._client.drain(name)
        await asyncio.sleep(min(fault.lasts_s, 4.0))
        for _ in range(times):
            await self.undo(name)
        return name

    async def undo(self, name: str) -> None:
        """Let an instance serve again; as often as it takes for a leader to hear it."""
        until_s = time.monotonic() + UNDO_S
        while time.monotonic() < until_s:
            with suppress(DunlinError):
                await self._client.drain(name, undo=True)
                return
            await asyncio.sleep(0.5)
