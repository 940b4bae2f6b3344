"""A new attempt asks the host tier for what earlier attempts of its request left there, before it starts.

Knows neither why those ended nor where they ran. Without an answer in time it starts from its tokens alone.
"""

from dunlin.effects import Effect
from dunlin.messages.types import Figure, KeptRegion, Why
from services.instance.kv.host_cache import HostCacheClient
from services.instance.sequence.table import WANTS_TOKENS, Sequence, SequenceState


class RegionClaims:
    """This instance's claims to regions in its node's host tier."""

    def __init__(self, tier: HostCacheClient) -> None:
        self._host_cache = tier

    def request(self, sequence: Sequence) -> list[Effect]:
        """Ask, if the sequence is one that may have run elsewhere; it does not start meanwhile."""
        place = sequence.place
        may_have_run = place.attempt > 1 or len(place.tokens) > place.prompt_tokens
        if not may_have_run or not self._host_cache.usable:
            return []
        sequence.is_claiming = True
        figures = (Figure("tokens", len(place.tokens)), Figure("attempt", place.attempt))
        return self._host_cache.claim_regions(sequence, Why("claim", "ask for what earlier attempts kept", figures))

    def claim_after_migration(self, sequence: Sequence, regions: tuple[KeptRegion, ...]) -> list[Effect]:
        """For one that arrived and runs: what its way here left in the tier are its checkpoints from now on.

        `regions` are this instance's already; without them they are its last instance's still, and asked for.
        """
        if regions:
            return self._host_cache.attach_regions(sequence, regions)
        if not self._host_cache.usable or not sequence.confirmed:
            return []
        why = Why("claim", "keep what the move copied", (Figure("tokens", sequence.confirmed),))
        return self._host_cache.claim_regions(sequence, why)

    def on_regions_found(self, sequence: Sequence, regions: tuple[KeptRegion, ...]) -> list[Effect]:
        """What is there belongs to the sequence, as far as it fits its tokens."""
        sequence.is_claiming = False
        if sequence.state in WANTS_TOKENS:
            return self._host_cache.attach_regions(sequence, regions)
        if sequence.state is not SequenceState.WAITING:
            return self._host_cache.release_all(regions)
        effects = self._host_cache.attach_regions(sequence, regions)
        sequence.is_claimed = bool(sequence.kept)
        return effects

    def on_timeout(self, sequence: Sequence) -> list[Effect]:
        """No answer will come."""
        sequence.is_claiming = False
        return []
