"""Sequences that move between instances: joins those who know of it, on both sides of a move.

Owns nothing but its parts: who leaves (`departures.py`), who arrives (`arrivals.py`), what the manager has this
instance give away (`sheds.py`), and who leaves because others decode (`handovers.py`).
"""

from typing import Any

from dunlin.effects import Address, Effect
from dunlin.messages.dispatch import Place
from dunlin.messages.types import Part
from dunlin.policies.handover import HandoverPolicy
from services.instance.arrivals import Arrivals, Here
from services.instance.config import KvHandoffConfig, MigrationConfig, SchedulerConfig
from services.instance.departure import Patience, Sender
from services.instance.departures import Departures
from services.instance.engine_side import EngineSide
from services.instance.handovers import Handovers, Limits
from services.instance.lives import Lives
from services.instance.offers import Copies
from services.instance.orders import Orders
from services.instance.sequences import Sequence, Sequences, State
from services.instance.sheds import Sheds
from services.instance.tier import HostTier


class Migration:
    """This instance's part in moves."""

    def __init__(
        self,
        config: MigrationConfig,
        kv_handoff: KvHandoffConfig,
        scheduler: SchedulerConfig,
        sequences: Sequences,
        lives: Lives,
        tier: HostTier,
        engine_side: EngineSide,
        orders: Orders,
        handover: HandoverPolicy,
    ) -> None:
        patience = Patience(config.stage_timeout_s, config.tail_tokens)
        self.departures = Departures(sequences, lives, Copies(tier), patience, self._sender)
        self.arrivals = Arrivals(lives, tier, self._here, config.max_incoming, config.reservation_s)
        self.sheds = Sheds(sequences, self.departures, orders, config.max_outgoing)
        limits = Limits(
            kv_handoff.max_concurrent, kv_handoff.max_hold_s, kv_handoff.refusal_pause_s, config.tail_tokens
        )
        self.handovers = Handovers(sequences, self.departures, handover, limits, orders, lambda: tier.usable)
        self._scheduler = scheduler
        self._sequences = sequences
        self._engine_side = engine_side
        self._lives = lives
        self._orders = orders
        self._tier = tier

    @property
    def parts(self) -> tuple[Departures, Arrivals, Sheds, Handovers]:
        """Those who know, each with its own handlers and its own count of what came too late."""
        return self.departures, self.arrivals, self.sheds, self.handovers

    @property
    def draining(self) -> bool:
        """Whether this instance takes nothing new."""
        return self.sheds.draining

    def recalls(self, older: Sequence, place: Place) -> bool:
        """Whether this attempt only says that one that was about to leave should go on here."""
        return older.state is State.LEAVING and older.in_steps == 0 and list(place.tokens) == older.tokens

    def settle(self) -> list[Effect]:
        """After every change: go on with those who leave, then begin with others."""
        effects = self.departures.settle() if len(self.departures) else []
        return effects + self.sheds.settle() + self.handovers.settle()

    def joined(self, peer: Address) -> list[Effect]:
        """A stream is open."""
        return self.departures.joined(peer) if peer.role == "instance" else []

    def gone(self, peer: Address) -> list[Effect]:
        """A stream ended."""
        if peer == self._tier.kvstore:
            self.arrivals.tier_gone()
        return self.departures.gone(peer)

    def engine_gone(self) -> list[Effect]:
        """The slab is lost, and with it the rooms in it."""
        return self.arrivals.engine_gone()

    def reported(self) -> dict[str, Any]:
        """What a report says of what moves."""
        return {
            "draining": self.sheds.draining,
            "leaving": len(self.departures) + self.sheds.waiting,
            "arriving": len(self.arrivals),
            "migrations_total": self.departures.moved_total,
            "migrations_failed_total": self.departures.failed_total,
            "migrated_tokens_total": self.departures.moved_tokens_total,
            "arrivals_total": self.arrivals.taken_total,
        }

    def _sender(self) -> Sender | None:
        ready = self._engine_side.ready
        return None if ready is None else Sender(ready, *self._orders.version)

    def _here(self) -> Here:
        refuses = "it is being emptied" if self.sheds.draining else ""
        if self._orders.followed is None:
            refuses = "no order of the global manager has come"
        if self._orders.part is not Part.DECODE:
            return Here(self._engine_side.ready, self._orders.epoch, refuses)
        return Here(self._engine_side.ready, self._orders.epoch, refuses or self._is_full(), self._headroom())

    def _is_full(self) -> str:
        """Why a decode instance takes nothing over now; it is asked all the time, and must stay able to go on."""
        if self._sequences.waiting_count:
            return "others wait for slots"
        running = len(self._sequences) + len(self.arrivals)
        return f"{running} sequences are enough" if running >= self._scheduler.max_running else ""

    def _headroom(self) -> int:
        """Slots that those that run will need soon."""
        ahead = len(self._sequences) * self._scheduler.allocate_ahead_tokens
        return min(ahead // 2, self._lives.slots.capacity // 8)
