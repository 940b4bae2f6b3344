"""Routes each answer of the kvstore, and each end of an engine's move, to the part of the core that waits for it.

Knows who waits for what, and nothing of why.
"""

from collections.abc import Callable

from dunlin.effects import Address, Effect
from dunlin.handlers import handles
from dunlin.messages.engine import MoveDone
from dunlin.messages.pool import RegionRefused, RegionReserved, RegionsFound, RegionsSent, RegionsTaken
from services.instance.arrivals import Arrivals
from services.instance.checkpointer import Checkpointer
from services.instance.claims import Claims
from services.instance.departures import Departures
from services.instance.lives import Lives
from services.instance.tickets import ArrivalClaim, ArrivalMove, HostReservation, Purpose, Question
from services.instance.tier import AnswerDue, HostTier


class PoolSide:
    """A router. `stale_total` counts answers of a kvstore whose memory is no more.

    `restore` lets sequences start from regions that were found for them.
    """

    def __init__(
        self,
        tier: HostTier,
        lives: Lives,
        checkpointer: Checkpointer,
        claims: Claims,
        arrivals: Arrivals,
        departures: Departures,
        restore: Callable[[], list[Effect]],
    ) -> None:
        self.stale_total = 0
        self._tier = tier
        self._lives = lives
        self._checkpointer = checkpointer
        self._claims = claims
        self._arrivals = arrivals
        self._departures = departures
        self._restore = restore

    @handles
    def reserved(self, now_s: float, sender: Address, message: RegionReserved) -> list[Effect]:
        """There is room in the tier."""
        if not self._is_keeper(sender):
            return []
        asked = self._tier.reserved_or_refused(message.ticket)
        if asked is None:
            return self._tier.release(message.host)
        taker = self._checkpointer if asked.purpose is Purpose.CHECKPOINT else self._lives
        return taker.reserved(asked, message.host)

    @handles
    def refused(self, now_s: float, sender: Address, message: RegionRefused) -> list[Effect]:
        """There is none. Checkpoints make way for a sequence that has to leave the slab."""
        asked = self._tier.reserved_or_refused(message.ticket) if self._is_keeper(sender) else None
        if asked is None:
            return []
        if asked.purpose is Purpose.CHECKPOINT:
            return self._checkpointer.refused(now_s)
        made = self._checkpointer.make_room(now_s, self._tier.size_bytes(asked.region.stop - asked.region.start))
        return [*made, *self._lives.ask_again(asked)] if made else self._lives.without_room(asked)

    @handles
    def found(self, now_s: float, sender: Address, message: RegionsFound) -> list[Effect]:
        """What earlier attempts left, or what was sent here for an arrival."""
        if not self._is_keeper(sender):
            return self._restore()
        claim = self._tier.found(message.ticket)
        if isinstance(claim, ArrivalClaim):
            return self._arrivals.found(claim.handle, message.regions)
        if claim is None:
            return self._tier.release_all(message.regions) + self._restore()
        return self._claims.found(claim.sequence, message.regions) + self._restore()

    @handles
    def taken(self, now_s: float, sender: Address, message: RegionsTaken) -> list[Effect]:
        """Another attempt has them."""
        names = list(zip(message.handle, message.generation, strict=False))
        return self._lives.taken(names) if self._is_keeper(sender) else []

    @handles
    def sent(self, now_s: float, sender: Address, message: RegionsSent) -> list[Effect]:
        """Regions of a departure lie at another kvstore, or do not."""
        transfer = self._tier.sent(message.ticket)
        return [] if transfer is None else self._departures.sent(transfer.departure, message)

    @handles
    def due(self, now_s: float, sender: Address, message: AnswerDue) -> list[Effect]:
        """No answer came in time: go on without."""
        question = self._tier.unanswered(message.ticket)
        return [] if question is None else self._over(now_s, question)

    @handles
    def landed(self, now_s: float, sender: Address, message: MoveDone) -> list[Effect]:
        """A move ended."""
        move = self._tier.landed(message.move)
        if move is None:
            return []
        if isinstance(move, ArrivalMove):
            return self._arrivals.landed(move.handle, message) + self._tier.map()
        if move.purpose is Purpose.CHECKPOINT:
            return self._checkpointer.landed(now_s, move, message) + self._tier.map()
        return self._lives.landed(move, message) + self._tier.map()

    def gone(self, now_s: float, kvstore: Address) -> list[Effect]:
        """The kvstore is gone: what was asked for will not come, what was kept there is lost."""
        return self._lost(now_s, kvstore, self._tier.close(kvstore))

    def unmapped(self, now_s: float) -> list[Effect]:
        """The engine cannot map the tier."""
        return self._lost(now_s, self._tier.kvstore, self._tier.unmapped())

    def _lost(self, now_s: float, kvstore: Address | None, questions: list[Question]) -> list[Effect]:
        effects = self._lives.tier_gone(kvstore)
        for question in questions:
            effects += self._over(now_s, question)
        return effects

    def _over(self, now_s: float, question: Question) -> list[Effect]:
        if not isinstance(question, HostReservation):
            return self._claims.over(question.sequence)
        is_checkpoint = question.purpose is Purpose.CHECKPOINT
        return self._checkpointer.refused(now_s) if is_checkpoint else self._lives.without_room(question)

    def _is_keeper(self, kvstore: Address) -> bool:
        """Whether it is the kvstore whose tier is used; an older one's answer names room in memory that is no more."""
        self.stale_total += kvstore != self._tier.kvstore
        return kvstore == self._tier.kvstore
