"""The victims of faults: the plan's numbers choose among the running processes, those in the aimed phase first.

It also records until when each process is disturbed.
"""

from dunlin.effects import Address
from simulator.campaign.clients import CampaignClient, CampaignClients
from simulator.campaign.coverage import phase_of
from simulator.campaign.plans import Fault
from simulator.cluster.simulated import SimulatedCluster

KEEPALIVE_S = 10.0
"""Seconds of silence after which a stream is given up (dunlin/wire/channels.py)."""


class VictimChooser:
    """Chooses victims. `aim`: prefer processes in this phase (empty: any)."""

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients) -> None:
        self.aim = ""
        self._cluster = cluster
        self._world = cluster.world
        self._clients = clients
        self._touched_s: dict[Address, float] = {}

    def was_disturbed(self, *addresses: Address) -> bool:
        """Whether a fault hinders one of the processes, or did until a moment ago."""
        return any(self._touched_s.get(address, -1.0) > self._world.now_s for address in addresses)

    def mark_disturbed(self, fault: Fault, *addresses: Address) -> None:
        """Record that a fault hinders these processes."""
        until_s = self._world.now_s + fault.lasts_s + KEEPALIVE_S
        for address in addresses:
            self._touched_s[address] = max(until_s, self._touched_s.get(address, 0.0))

    def of_role(self, role: str, pick: float) -> Address | None:
        """A process of a role, or None."""
        there = self._preferred(self._cluster.of_role(role))
        return there[int(pick * len(there))] if there else None

    def any_process(self, pick: float) -> Address:
        """A process of any role."""
        there = self._cluster.roster.all_processes()
        return there[int(pick * len(there))]

    def running_instance(self, fault: Fault) -> Address | None:
        """An instance that runs and has an engine, or None."""
        victim = self.of_role("instance", fault.pick)
        if victim is None or self._world.is_paused(victim) or not self._cluster.has_engine(victim):
            return None
        return victim

    def stream(self, fault: Fault) -> tuple[Address, Address] | None:
        """An open stream, its two ends in a chosen order, or None."""
        open_ones = [pair for pair in self._cluster.roster.streams() if self._world.is_connected(*pair)]
        if not open_ones:
            return None
        meant = set(self._preferred(sorted({one for pair in open_ones for one in pair})))
        open_ones = [pair for pair in open_ones if pair[0] in meant or pair[1] in meant]
        one, other = open_ones[int(fault.pick * len(open_ones))]
        return (one, other) if fault.other < 0.5 else (other, one)

    def open_client(self, pick: float) -> CampaignClient | None:
        """A client that waits for tokens, or None."""
        open_ones = [client for client in self._clients.open() if client.request]
        return open_ones[int(pick * len(open_ones))] if open_ones else None

    def _preferred(self, there: list[Address]) -> list[Address]:
        """The processes in the aimed phase, or all if none is."""
        return [one for one in there if self.aim and phase_of(one, self._cluster) == self.aim] or there
