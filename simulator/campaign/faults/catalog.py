"""The faults of a campaign by kind: what each does to a cluster, and how the cluster recovers.

A fault returns the process that it struck, or None where it was impossible (the last process of a role, for example).
The plan's numbers choose the victims among the processes that run; nothing else is random.
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
    """Injects faults into a cluster. `is_poisoned`: some of its requests crash engines."""

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, jitter: Jitter, is_poisoned: bool) -> None:
        self.last_s = 0.0
        self._world = cluster.world
        self._victims = victims = VictimChooser(cluster, clients)
        self.processes = ProcessFaults(cluster, victims, jitter.lag_s)
        self.engines = EngineFaults(cluster, victims, is_poisoned)
        self.storage = StorageFaults(cluster, victims)
        network, etcd = NetworkFaults(cluster, victims), EtcdFaults(cluster, victims)
        operators = OperatorFaults(cluster, victims, clients)
        self._actions: dict[str, FaultAction] = {}
        for group in (self.processes, self.engines, self.storage, network, etcd, operators):
            self._actions |= {kind: getattr(group, f"do_{kind}") for kind in _kinds_of(type(group))}

    def inject(self, fault: Fault) -> Address | None:
        """Inject a fault; the victim, or None where it was impossible."""
        self._victims.aim = fault.aim
        victim = self._actions[fault.kind](fault)
        if victim is not None:
            self._victims.mark_disturbed(fault, victim)
            self.last_s = max(self.last_s, self._world.now_s + fault.lasts_s + KEEPALIVE_S)
        return victim

    def was_disturbed(self, *addresses: Address) -> bool:
        """Whether a fault hinders one of the processes, or did until a moment ago."""
        return self._victims.was_disturbed(*addresses)


def fault_kinds() -> tuple[str, ...]:
    """The kinds of all faults."""
    return tuple(sorted(kind for group in KINDS for kind in _kinds_of(group)))


def _kinds_of(group: type) -> list[str]:
    return [name.removeprefix("do_") for name in vars(group) if name.startswith("do_")]
