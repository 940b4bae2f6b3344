"""The base class of the invariants' watchers."""

from collections import Counter

from dunlin.effects import Address, Message
from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.violation import Violation
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster


class InvariantWatcher:
    """Checks one invariant of a cluster. A hook raises `fail(…)` when it does not hold.

    `roles`: those of the receivers whose deliveries it looks at (empty: none but by `sent` and `audit`).
    `excused` counts the looks that found it broken and were excused, each by its reason.
    """

    invariant = ""
    roles: tuple[str, ...] = ()

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        self.cluster = cluster
        self.clients = clients
        self.faults = faults
        self.excused: Counter[str] = Counter()

    def before(self, event: Delivery) -> None:
        """Called before a delivery to a process of one of `roles`."""

    def after(self, event: Delivery) -> None:
        """Called after a delivery to a process of one of `roles`."""

    def sent(self, at_s: float, sender: Address, to: Address, message: Message) -> None:
        """Called when a core sends a message on an open stream, between `before` and `after` of what made it do so."""

    def audit(self) -> None:
        """Check everything; called at intervals."""

    def at_end(self) -> None:
        """Check the final state: all clients ended and all graces ran out."""

    def fail(self, text: str, invariant: str = "") -> Violation:
        """The violation to raise, of `invariant` or else of the watcher's own."""
        return Violation(invariant or self.invariant, self.cluster.world.now_s, text)

    def excuse(self, reason: str, invariant: str = "") -> None:
        """Count a look that found the invariant broken, and may have."""
        self.excused[f"{invariant or self.invariant} {reason}"] += 1
