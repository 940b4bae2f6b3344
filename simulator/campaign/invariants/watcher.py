"""The base class of the invariants' watchers."""

from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.violation import Violation
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster


class InvariantWatcher:
    """Checks one invariant of a cluster. A hook raises `fail(…)` when it does not hold."""

    invariant = ""

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        self.cluster = cluster
        self.clients = clients
        self.faults = faults

    def before(self, event: Delivery) -> None:
        """Called before a delivery."""

    def after(self, event: Delivery) -> None:
        """Called after a delivery."""

    def audit(self) -> None:
        """Check everything; called at intervals."""

    def at_end(self) -> None:
        """Check the final state: all clients ended and all graces ran out."""

    def fail(self, text: str, invariant: str = "") -> Violation:
        """The violation to raise, of `invariant` or else of the watcher's own."""
        return Violation(invariant or self.invariant, self.cluster.world.now_s, text)
