"""The plans that covered something new, and which of them is changed next. Knows no cluster and runs nothing."""

from dataclasses import dataclass
from random import Random

from simulator.campaign.plans import TrialPlan


@dataclass(slots=True)
class CorpusEntry:
    """A plan that covered `novelty` features first. `mutations`: plans that were made of it."""

    plan: TrialPlan
    novelty: int
    mutations: int = 0

    @property
    def energy(self) -> float:
        """How likely it is chosen, beside the others: less with each mutation."""
        return self.novelty / (1 + self.mutations)


class PlanCorpus:
    """The entries, in the order in which they came, and the features that any run covered."""

    def __init__(self) -> None:
        self.entries: list[CorpusEntry] = []
        self.features: set[int] = set()

    def admit(self, plan: TrialPlan, features: set[int]) -> bool:
        """Take a plan in if its run covered something new; whether it did."""
        novelty = len(features - self.features)
        self.features |= features
        if novelty:
            self.entries.append(CorpusEntry(plan, novelty))
        return novelty > 0

    def choose(self, draw: Random) -> tuple[TrialPlan, int]:
        """A plan to change, chosen by energy, and the number of the mutation."""
        (entry,) = draw.choices(self.entries, [entry.energy for entry in self.entries])
        entry.mutations += 1
        return entry.plan, entry.mutations
