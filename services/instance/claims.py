"""A new attempt asks the host tier for what earlier attempts of its request left there, before it starts.

Knows neither why those ended nor where they ran. Without an answer in time it starts from its tokens alone.
"""

from dunlin.effects import Effect
from dunlin.messages.types import Figure, KeptRegion, Why
from services.instance.sequences import LIVES_ON, Sequence, State
from services.instance.tier import HostTier


class Claims:
    """This instance's claims to regions in its node's host tier."""

    def __init__(self, tier: HostTier) -> None:
        self._tier = tier

    def begin(self, sequence: Sequence) -> list[Effect]:
        """Ask, if the sequence is one that may have run elsewhere; it does not start meanwhile."""
        place = sequence.place
        may_have_run = place.attempt > 1 or len(place.tokens) > place.prompt_tokens
        if not may_have_run or not self._tier.usable:
            return []
        sequence.is_claiming = True
        figures = (Figure("tokens", len(place.tokens)), Figure("attempt", place.attempt))
        return self._tier.find(sequence, Why("claim", "ask for what earlier attempts kept", figures))

    def keep(self, sequence: Sequence, regions: tuple[KeptRegion, ...]) -> list[Effect]:
        """For one that arrived and runs: what its way here left in the tier are its checkpoints from now on.

        `regions` are this instance's already; without them they are its last instance's still, and asked for.
        """
        if regions:
            return self._tier.adopt(sequence, regions)
        if not self._tier.usable or not sequence.answered:
            return []
        why = Why("claim", "keep what the move copied", (Figure("tokens", sequence.answered),))
        return self._tier.find(sequence, why)

    def found(self, sequence: Sequence, regions: tuple[KeptRegion, ...]) -> list[Effect]:
        """What is there belongs to the sequence, as far as it fits its tokens."""
        sequence.is_claiming = False
        if sequence.state in LIVES_ON:
            return self._tier.adopt(sequence, regions)
        if sequence.state is not State.WAITING:
            return self._tier.release_all(regions)
        effects = self._tier.adopt(sequence, regions)
        sequence.is_claimed = bool(sequence.kept)
        return effects

    def over(self, sequence: Sequence) -> list[Effect]:
        """No answer will come."""
        sequence.is_claiming = False
        return []
