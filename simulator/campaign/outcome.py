"""What came of one trial."""

from collections import Counter
from dataclasses import dataclass, field

from simulator.campaign.violation import Violation


@dataclass
class TrialOutcome:
    """The outcome of a trial. `digest` covers time, receiver, sender and kind of each delivery: two runs of a plan have
    the same. `name`: of its plan in a search, or empty.

    `done` counts faults by kind, `ends` the ends of clients, `excused` the looks of each invariant that found it
    broken for a reason that excuses it.
    """

    seed: int
    violation: Violation | None = None
    simulated_s: float = 0.0
    events: int = 0
    digest: int = 0
    done: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    name: str = ""

    @property
    def label(self) -> str:
        """What was run, in words."""
        return f"plan {self.name}" if self.name else f"seed {self.seed}"
