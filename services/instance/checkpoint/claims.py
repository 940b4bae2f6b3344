"""A new attempt asks the host tier for what earlier attempts of its request left there, before it starts.

Knows neither why those ended nor where they ran. Without an answer in time it starts from its tokens alone.
"""

from dunlin.effects import Effect
from dunlin.messages.types import Figure, KeptRegion, Why
from services.instance.kv.host_cache import HostCacheClient
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import WANTS_TOKENS, SequenceState


class RegionClaims:
    """This instance's claims to regions in its node's host tier."""

    def __init__(self, host_cache: HostCacheClient) -> None:
        self._host_cache = host_cache

    def request(self, sequence: Sequence) -> list[Effect]:
        """Claim regions for a sequence that may have run elsewhere; it does not start before the answer."""
        place = sequence.place
        may_have_run = place.attempt > 1 or len(place.tokens) > place.prompt_tokens
        if not may_have_run or not self._host_cache.usable:
            return []
        sequence.is_claiming = True
        figures = (Figure("tokens", len(place.tokens)), Figure("attempt", place.attempt))
        return self._host_cache.claim_regions(sequence, Why("claim", "ask for what earlier attempts kept", figures))

    def claim_after_migration(self, sequence: Sequence, regions: tuple[KeptRegion, ...]) -> list[Effect]:
        """Keep the regions that a migration left in the host tier as checkpoints of the sequence, which runs already.

        `regions` belong to this instance already; without any, those of the source instance are claimed.
        """
        if regions:
            return self._host_cache.attach_regions(sequence, regions)
        if not self._host_cache.usable or not sequence.valid:
            return []
        why = Why("claim", "keep what the move copied", (Figure("tokens", sequence.valid),))
        return self._host_cache.claim_regions(sequence, why)

    def on_regions_found(self, sequence: Sequence, regions: tuple[KeptRegion, ...]) -> list[Effect]:
        """Attach the claimed regions to the sequence, as far as they match its tokens."""
        sequence.is_claiming = False
        if sequence.state in WANTS_TOKENS:
            return self._host_cache.attach_regions(sequence, regions)
        if sequence.state is not SequenceState.WAITING:
            return self._host_cache.release_all(regions)
        effects = self._host_cache.attach_regions(sequence, regions)
        sequence.is_claimed = bool(sequence.kept)
        return effects

    def on_timeout(self, sequence: Sequence) -> list[Effect]:
        """The kvstore does not answer: the sequence starts from its tokens alone."""
        sequence.is_claiming = False
        return []
