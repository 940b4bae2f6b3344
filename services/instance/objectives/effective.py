"""The objectives of a sequence: its request's own, else the cluster's. Decides nothing."""

from collections.abc import Iterable

from dunlin.policies.step_budget import BatchCandidate, StepBudget
from services.instance.config import ObjectivesConfig
from services.instance.sequence.sequence import Sequence


class EffectiveObjectives:
    """Owns the list of sequences that it looked at last, and whether one of them has objectives of its own: that
    changes with membership alone, and while none has, a budget costs a comparison.
    """

    def __init__(self, cluster: ObjectivesConfig) -> None:
        self._cluster = cluster
        self._looked_at: list[Sequence] = []
        self._are_own = False

    def ttft_s(self, sequence: Sequence) -> float:
        """Seconds within which its first token should come."""
        return sequence.place.ttft_objective_s or self._cluster.ttft_s

    def tpot_s(self, sequence: Sequence) -> float:
        """Seconds within which each further token should come."""
        return sequence.place.tpot_objective_s or self._cluster.tpot_s

    def due_s(self, sequence: Sequence) -> float:
        """When its first token should come; infinite for batch work, and where it has come."""
        if sequence.clock is None or len(sequence.tokens) > sequence.place.prompt_tokens:
            return float("inf")
        return sequence.clock.began_s + self.ttft_s(sequence)

    def set_budget(
        self,
        budget: StepBudget,
        running: list[Sequence],
        candidates: Iterable[tuple[Sequence, BatchCandidate]],
    ) -> None:
        """Give the budget the strictest objectives of the interactive candidates: of those that decode for each token,
        of prompts for the first one; the cluster's where there are none. `running` is a list that is never changed.
        """
        if running is not self._looked_at:
            self._looked_at, self._are_own = running, any(map(_has_own, running))
        budget.ttft_s, budget.tpot_s = self._cluster.ttft_s, self._cluster.tpot_s
        if not self._are_own:
            return
        interactive = [(one, candidate.is_decode) for one, candidate in candidates if not one.is_batch]
        budget.tpot_s = min((self.tpot_s(one) for one, decodes in interactive if decodes), default=budget.tpot_s)
        budget.ttft_s = min((self.ttft_s(one) for one, decodes in interactive if not decodes), default=budget.ttft_s)


def _has_own(sequence: Sequence) -> bool:
    place = sequence.place
    return not sequence.is_batch and (place.ttft_objective_s > 0 or place.tpot_objective_s > 0)
