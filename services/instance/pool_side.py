"""This instance's host tier as its core sees it: each answer of the kvstore, and each end of a move, to whom it is for.

Knows what asks and moves are for, and nothing of why.
"""

from dunlin.effects import Address, Effect
from dunlin.messages.engine import MoveDone
from dunlin.messages.pool import RegionRefused, RegionReserved, RegionsFound, RegionsTaken
from services.instance.checkpointer import Checkpointer
from services.instance.claims import Claims
from services.instance.lives import Lives
from services.instance.tier import AnswerDue, Ask, HostTier, Purpose


class PoolSide:
    """A router. `stale_total` counts answers of a kvstore whose memory is no more."""

    def __init__(self, lives: Lives, tier: HostTier, checkpointer: Checkpointer, claims: Claims) -> None:
        self.stale_total = 0
        self._lives = lives
        self._tier = tier
        self._checkpointer = checkpointer
        self._claims = claims

    def reserved(self, now_s: float, sender: Address, message: RegionReserved) -> list[Effect]:
        """There is room in the tier."""
        if not self._is_keeper(sender):
            return []
        ask = self._tier.answered(message.ticket)
        if ask is None:
            return self._tier.release(message.host)
        taker = self._checkpointer if ask.purpose is Purpose.CHECKPOINT else self._lives
        return taker.reserved(ask, message.host)

    def refused(self, now_s: float, sender: Address, message: RegionRefused) -> list[Effect]:
        """There is none. Checkpoints make way for one that has to leave the slab."""
        ask = self._tier.answered(message.ticket) if self._is_keeper(sender) else None
        if ask is None:
            return []
        if ask.purpose is Purpose.CHECKPOINT:
            return self._checkpointer.refused(now_s)
        made = self._checkpointer.make_room(now_s, self._tier.size_bytes(ask.region.stop - ask.region.start))
        return [*made, *self._lives.ask_again(ask)] if made else self._lives.without_room(ask)

    def found(self, now_s: float, sender: Address, message: RegionsFound) -> list[Effect]:
        """What earlier attempts left."""
        if not self._is_keeper(sender):
            return []
        ask = self._tier.answered(message.ticket)
        return self._claims.refuse(message.regions) if ask is None else self._claims.found(ask, message.regions)

    def taken(self, now_s: float, sender: Address, message: RegionsTaken) -> list[Effect]:
        """Another attempt has them."""
        names = list(zip(message.handle, message.generation, strict=False))
        return self._lives.taken(names) if self._is_keeper(sender) else []

    def due(self, now_s: float, sender: Address, message: AnswerDue) -> list[Effect]:
        """Nobody answered in time: go on without."""
        ask = self._tier.unanswered(message.ticket)
        return [] if ask is None else self._over(now_s, ask)

    def landed(self, now_s: float, message: MoveDone) -> list[Effect]:
        """A move ended."""
        flight = self._tier.landed(message.move)
        if flight is None:
            return []
        if flight.purpose is Purpose.CHECKPOINT:
            return self._checkpointer.landed(now_s, flight, message) + self._tier.map()
        return self._lives.landed(flight, message) + self._tier.map()

    def gone(self, now_s: float, kvstore: Address) -> list[Effect]:
        """The kvstore is gone: what was asked for will not come, what was kept there is lost."""
        return self._lost(now_s, kvstore, self._tier.close(kvstore))

    def unmapped(self, now_s: float) -> list[Effect]:
        """The engine cannot map the tier."""
        return self._lost(now_s, self._tier.kvstore, self._tier.unmapped())

    def _lost(self, now_s: float, kvstore: Address | None, asked: list[Ask]) -> list[Effect]:
        effects = self._lives.tier_gone(kvstore)
        for ask in asked:
            effects += self._over(now_s, ask)
        return effects

    def _over(self, now_s: float, ask: Ask) -> list[Effect]:
        if ask.purpose is Purpose.CHECKPOINT:
            return self._checkpointer.refused(now_s)
        return self._claims.over(ask) if ask.purpose is Purpose.CLAIM else self._lives.without_room(ask)

    def _is_keeper(self, kvstore: Address) -> bool:
        """Whether it is the kvstore whose tier is used; an older one's answer names room in memory that is no more."""
        self.stale_total += kvstore != self._tier.kvstore
        return kvstore == self._tier.kvstore
