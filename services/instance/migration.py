"""Sequences that move between instances: routes what is said about it to those who know, on both sides of a move.

Owns nothing but its parts: who leaves (`departures.py`), who arrives (`arrivals.py`), what the manager has this
instance give away (`sheds.py`), and who leaves because others decode (`handovers.py`).
"""

from collections.abc import Callable
from typing import Any

from dunlin.effects import Address, Effect
from dunlin.messages.dispatch import Place
from dunlin.messages.engine import MoveDone
from dunlin.messages.group import Fill, Filled, Release, Reserve, Reserved, ReserveRefused, Vacated
from dunlin.messages.plan import Drain, HandOver, Shed, Undrain
from dunlin.messages.pool import RegionsFound, RegionsSent
from dunlin.messages.types import Part
from dunlin.policies.handover import HandoverPolicy
from services.instance.arrivals import ArrivalDue, Arrivals, Here
from services.instance.config import KvHandoffConfig, MigrationConfig, SchedulerConfig
from services.instance.copies import Copies
from services.instance.departure import DepartureDue, Patience, Sender
from services.instance.departures import Departures
from services.instance.engine_side import EngineSide
from services.instance.handovers import Handovers, HoldOver, Limits, PauseOver
from services.instance.lives import Lives
from services.instance.orders import Orders
from services.instance.sequences import Sequence, Sequences, State
from services.instance.sheds import Sheds
from services.instance.tier import HostTier

Handler = Callable[[float, Address, Any], list[Effect]]


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
        self.sheds = Sheds(sequences, self.departures, config.max_outgoing)
        limits = Limits(
            kv_handoff.max_concurrent, kv_handoff.max_hold_s, kv_handoff.refusal_pause_s, config.tail_tokens
        )
        self.handovers = Handovers(
            sequences, self.departures, handover, limits, lambda: orders.part, lambda: tier.usable
        )
        self._scheduler = scheduler
        self._sequences = sequences
        self._engine_side = engine_side
        self._lives = lives
        self._orders = orders
        self._tier = tier

    @property
    def handlers(self) -> dict[type[Any], Handler]:
        """Per message what becomes of it."""
        departures, arrivals, sheds = self.departures, self.arrivals, self.sheds
        return {
            Shed: lambda now_s, sender, message: sheds.shed(sender, message, self._epoch),
            Drain: lambda now_s, sender, message: sheds.drain(sender, message, self._epoch),
            Undrain: lambda now_s, sender, message: sheds.drain(sender, message, self._epoch),
            Reserve: lambda now_s, sender, message: arrivals.reserve(sender, message),
            Fill: lambda now_s, sender, message: arrivals.fill(sender, message),
            Release: lambda now_s, sender, message: arrivals.release(sender, message),
            ArrivalDue: lambda now_s, sender, message: arrivals.due(message),
            Reserved: lambda now_s, sender, message: departures.reserved(sender, message),
            ReserveRefused: lambda now_s, sender, message: departures.refused(sender, message),
            Filled: lambda now_s, sender, message: departures.filled(sender, message),
            Vacated: lambda now_s, sender, message: departures.vacated(sender, message),
            RegionsSent: lambda now_s, sender, message: self._on_sent(message),
            HandOver: lambda now_s, sender, message: self.handovers.hand_over(message, self._epoch),
            HoldOver: lambda now_s, sender, message: self.handovers.hold_over(message),
            PauseOver: lambda now_s, sender, message: self.handovers.pause_over(message),
            DepartureDue: lambda now_s, sender, message: departures.due(message),
        }

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

    def found(self, message: RegionsFound) -> list[Effect] | None:
        """Regions for a room; None: they are for somebody else."""
        handle = self._tier.found_for_room(message.ticket)
        return None if handle is None else self.arrivals.found(handle, message.regions)

    def _on_sent(self, message: RegionsSent) -> list[Effect]:
        departure = self._tier.sent(message.ticket)
        return [] if departure is None else self.departures.sent(departure, message)

    def landed(self, done: MoveDone) -> list[Effect] | None:
        """The answer to a move into a room; None: it is another's."""
        handle = self._tier.landed_in_room(done.move)
        return None if handle is None else [*self.arrivals.landed(handle, done), *self._tier.map()]

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

    @property
    def _epoch(self) -> int:
        return self._orders.version[0]

    @property
    def stale_total(self) -> int:
        """What came too late, of all that moves."""
        departures, arrivals = self.departures.stale_total, self.arrivals.stale_total
        return departures + arrivals + self.sheds.stale_total + self.handovers.stale_total

    def _sender(self) -> Sender | None:
        ready = self._engine_side.ready
        return None if ready is None else Sender(ready, *self._orders.version)

    def _here(self) -> Here:
        refuses = "it is being emptied" if self.sheds.draining else ""
        if self._orders.followed is None:
            refuses = "no order of the global manager has come"
        if self._orders.part is not Part.DECODE:
            return Here(self._engine_side.ready, self._epoch, refuses)
        return Here(self._engine_side.ready, self._epoch, refuses or self._is_full(), self._headroom())

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
