"""The faults of a campaign, by name: what each does to a cluster, and how the cluster gets well again.

Every fault says at whom it struck, or nothing where it could not (the last of its kind, say). The plan's numbers choose
the victims among who is there; nothing else is left to chance.
"""

from collections.abc import Callable

from dunlin.effects import Address
from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.engines import EngineFaults
from simulator.campaign.faults.etcd import EtcdFaults
from simulator.campaign.faults.network import NetworkFaults
from simulator.campaign.faults.operators import OperatorFaults
from simulator.campaign.faults.processes import ProcessFaults
from simulator.campaign.faults.storage import StorageFaults
from simulator.campaign.faults.victims import KEEPALIVE_S, VictimChooser
from simulator.campaign.plans import Fault
from simulator.cluster.network import Jitter
from simulator.cluster.simulated import SimulatedCluster

KINDS = (ProcessFaults, EngineFaults, NetworkFaults, StorageFaults, EtcdFaults, OperatorFaults)
FaultAction = Callable[[Fault], Address | None]


class FaultInjector:
    """Strikes a cluster. `is_poisoned`: it has requests that crash engines."""

    def __init__(self, cluster: SimulatedCluster, readers: CampaignClients, jitter: Jitter, is_poisoned: bool) -> None:
        self.last_s = 0.0
        self._world = cluster.world
        self._victims = victims = VictimChooser(cluster, readers)
        self.processes = ProcessFaults(cluster, victims, jitter.lag_s)
        self.engines = EngineFaults(cluster, victims, is_poisoned)
        self.storage = StorageFaults(cluster, victims)
        network, etcd = NetworkFaults(cluster, victims), EtcdFaults(cluster, victims)
        people = OperatorFaults(cluster, victims, readers)
        self._strikes: dict[str, FaultAction] = {}
        for group in (self.processes, self.engines, self.storage, network, etcd, people):
            self._strikes |= {kind: getattr(group, f"do_{kind}") for kind in _kinds_of(type(group))}

    def inject(self, fault: Fault) -> Address | None:
        """Do it; the victim, or None where it could not be done."""
        self._victims.aim = fault.aim
        victim = self._strikes[fault.kind](fault)
        if victim is not None:
            self._victims.mark_disturbed(fault, victim)
            self.last_s = max(self.last_s, self._world.now_s + fault.lasts_s + KEEPALIVE_S)
        return victim

    def was_disturbed(self, *addresses: Address) -> bool:
        """Whether a fault keeps one of them from what it should do, or did until a moment ago."""
        return self._victims.was_disturbed(*addresses)


def fault_kinds() -> tuple[str, ...]:
    """The names of all faults."""
    return tuple(sorted(kind for group in KINDS for kind in _kinds_of(group)))


def _kinds_of(group: type) -> list[str]:
    return [name.removeprefix("do_") for name in vars(group) if name.startswith("do_")]
