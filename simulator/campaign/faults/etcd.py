"""Faults of etcd: outage, lost lease, compacted watch, late orders of a deposed leader."""

from functools import partial

from dunlin.effects import Address
from simulator.campaign.faults.network import LONGEST_PAUSE_S
from simulator.campaign.faults.victims import VictimChooser
from simulator.campaign.plans import Fault
from simulator.cluster.simulated import SimulatedCluster


class EtcdFaults:
    """Faults of the membership and of the election."""

    def __init__(self, cluster: SimulatedCluster, victims: VictimChooser) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._victims = victims

    def do_etcd_outage(self, fault: Fault) -> Address | None:
        """etcd is down: no membership, no election; the leader steps down."""
        if self._cluster.etcd.is_down:
            return None
        self._cluster.etcd.begin_outage(fault.lasts_s)
        return self._victims.of_role("global_manager", fault.pick)

    def do_lose_lease(self, fault: Fault) -> Address | None:
        """The leader loses its term and runs on."""
        leader = self._cluster.etcd.leader
        self._cluster.etcd.resign()
        return leader

    def do_late_orders(self, fault: Fault) -> Address | None:
        """Delay a leader's messages until its successor, and the next one, lead."""
        leader = self._cluster.etcd.leader
        others = [one for one in self._cluster.of_role("global_manager") if one != leader]
        if leader is None or not others or self._cluster.etcd.is_down:
            return None
        late = [
            pair for pair in self._cluster.roster.streams() if others[0] in pair and self._world.is_connected(*pair)
        ]
        for pair in late:
            self._victims.mark_disturbed(fault, *pair)
            self._world.stall(*pair)
            self._world.call_later(min(fault.lasts_s, LONGEST_PAUSE_S), partial(self._world.unstall, *pair))
        self._cluster.etcd.resign()
        self._world.call_later(min(0.5, fault.lasts_s) * fault.amount, self._cluster.etcd.resign)
        return others[0]

    def do_watch_reset(self, fault: Fault) -> Address | None:
        """The watch history is compacted: followers receive the whole membership."""
        self._cluster.etcd.compact_history()
        return self._victims.of_role("monitor", fault.pick)
