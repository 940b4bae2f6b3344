"""What a run covered, as a set of small integers: the features that a search guides itself by.

The same run has the same features on any machine and Python version. A handler's outcome (the kinds of messages that
it sends) stands for the branch that it took: tracing lines would cost more (docs/decisions/2026-11-25-search.md).
"""

from zlib import crc32

from dunlin.effects import Address, Message
from simulator.campaign.coverage import Coverage, phase_of
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

PHASED = ("instance", "dispatcher")
"""Roles of which the phase of the receiver is part of a feature."""


class RunFeatures(Coverage):
    """The coverage of one run, with its features: `found`.

    Those are the faults by the victim's phase; the transitions of sequences by the message that caused them; what each
    handler sent, by the phase of its process; and each handler's outcome with the one before it, of one process.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: set[int] = set()
        self._kind = ""
        self._sent: set[str] = set()
        self._last: dict[Address, str] = {}

    def sent(self, at_s: float, sender: Address, to: Address, message: Message) -> None:
        """Note a message that the present event's handler sends."""
        self._sent.add(type(message).__name__)

    def delivered(self, cluster: SimulatedCluster, event: Delivery) -> None:
        """Count a delivered message, and note what its handler did."""
        self._kind = type(event.message).__name__
        super().delivered(cluster, event)
        role = event.to.role
        outcome = f"{role} {self._kind} {'+'.join(sorted(self._sent))}"
        self._sent.clear()
        self._note(f"{self._last.get(event.to)} {outcome}")
        self._last[event.to] = outcome
        if role in PHASED and event.to in cluster.cores:
            self._note(f"{phase_of(event.to, cluster)} {outcome}")

    def fault_applied(self, kind: str, role: str, phase: str) -> None:
        """Count a fault by the victim's role and phase."""
        super().fault_applied(kind, role, phase)
        self._note(f"fault {kind} {role} {phase}")

    def _changed(self, before: str, state: str) -> None:
        self._note(f"{self._kind} {before} {state}")

    def _note(self, feature: str) -> None:
        self.found.add(crc32(feature.encode()))
