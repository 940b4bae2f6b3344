"""What every invariant's watcher has: the cluster that it looks at, and how to say that something does not hold."""

from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.violation import Violation
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster


class InvariantWatcher:
    """What all have: the cluster, and how to say that something does not hold."""

    invariant = ""

    def __init__(self, cluster: SimulatedCluster, readers: CampaignClients, faults: FaultInjector) -> None:
        self.cluster = cluster
        self.readers = readers
        self.faults = faults

    def before(self, event: Delivery) -> None:
        """The event is about to be delivered."""

    def after(self, event: Delivery) -> None:
        """The event was delivered."""

    def audit(self) -> None:
        """Look at everything."""

    def at_end(self) -> None:
        """Everybody is done and the dust has settled."""

    def fail(self, text: str, invariant: str = "") -> Violation:
        """The violation to raise."""
        return Violation(invariant or self.invariant, self.cluster.world.now_s, text)
