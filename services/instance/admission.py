"""Which attempts are taken, and which the fence of (dispatcher, request, attempt) stops. Knows no step and no slot."""

from dunlin import limits
from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Accepted, Cancel, Ended, Place, Refusal
from dunlin.messages.types import Figure, Why
from services.instance.checkpoint.claims import RegionClaims
from services.instance.config import SchedulerConfig
from services.instance.engine.client import EngineClient
from services.instance.engine.layer_changes import LayerChanges
from services.instance.group.leading.leader import GroupLeader
from services.instance.migration.migrate_in import IncomingMigration
from services.instance.migration.router import MigrationRouter
from services.instance.refusals import refuse
from services.instance.scheduling.group_orders import GroupOrders
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.table import SequenceTable


class AttemptAdmission:
    """Accepts or refuses attempts that dispatchers place here, and cancels them."""

    def __init__(
        self,
        config: SchedulerConfig,
        sequences: SequenceTable,
        lifecycle: SequenceLifecycle,
        steps: StepLedger,
        migration: MigrationRouter,
        claims: RegionClaims,
        engine_client: EngineClient,
        group_orders: GroupOrders,
        layer_changes: LayerChanges,
        group_leader: GroupLeader,
    ) -> None:
        self.stale_total = 0
        self._config = config
        self._sequences = sequences
        self._lifecycle = lifecycle
        self._steps = steps
        self._migration = migration
        self._claims = claims
        self._engine_client = engine_client
        self._group_orders = group_orders
        self._layer_changes = layer_changes
        self._group_leader = group_leader

    @handles
    def admit(self, now_s: float, sender: Address, place: Place) -> list[Effect]:
        """Accept an attempt into the waiting queue, or refuse it. A newer attempt ends the older one."""
        ready = self._engine_client.ready
        older = self._sequences.by_key((sender, place.request))
        if older is not None and older.place.attempt >= place.attempt:
            self.stale_total += 1
            return [refuse(sender, place, Refusal.STALE, Figure("attempt_held", older.place.attempt))]
        if older is not None and self._migration.is_recall(older, place):
            return self._resume_here(sender, older, place)
        effects = self._lifecycle.stop(older) if older is not None else []
        if ready is None:
            return [*effects, refuse(sender, place, Refusal.NOT_READY)]
        if not self._layer_changes.is_whole:
            held = Figure("layers_held", len(ready.layers))
            return [*effects, refuse(sender, place, Refusal.NOT_READY, held, because="layers are missing")]
        if self._group_orders.current is None:
            return [*effects, refuse(sender, place, Refusal.NOT_IN_PLAN)]
        if self._migration.draining:
            return [*effects, refuse(sender, place, Refusal.DRAINING)]
        capacity = ready.max_positions if place.group else self._lifecycle.slot_table.capacity
        max_length, limit = place.prompt_tokens + place.max_tokens, min(ready.max_positions, capacity)
        if max_length > limit or len(place.tokens) >= max_length or not place.tokens:
            figures = (Figure("tokens", len(place.tokens)), Figure("longest", max_length), Figure("limit", limit))
            alone = 0 if place.group else limit
            return [*effects, refuse(sender, place, Refusal.TOO_LONG, *figures, limit_tokens=alone)]
        if fault := limits.placement_error(place, ready.vocabulary):
            # No engine can ever run it: INVALID is the only refusal at which a dispatcher gives the request up.
            known = Figure("vocabulary", ready.vocabulary)
            return [*effects, refuse(sender, place, Refusal.INVALID, known, because=fault)]
        if place.group and place.sampling.prompt_logprobs is not None:
            fault = "prompt_logprobs: those of a prompt that a group of instances computes are not supported"
            return [*effects, refuse(sender, place, Refusal.INVALID, because=fault)]
        if place.adapter and place.adapter not in ready.adapters:
            loaded = Figure("adapters", len(ready.adapters))
            return [*effects, refuse(sender, place, Refusal.NO_ADAPTER, loaded)]
        if place.group:
            return [*effects, self._group_leader.admit(now_s, sender, place)]
        if (migration := self._migration.migrate_in.take_over(sender, place)) is not None:
            return [*effects, *self._start_migrated(now_s, sender, place, migration)]
        if self._sequences.waiting_count >= self._config.max_waiting:
            queue = (Figure("waiting", self._sequences.waiting_count), Figure("max", self._config.max_waiting))
            return [*effects, refuse(sender, place, Refusal.FULL, *queue)]
        return [*effects, *self._enqueue(now_s, sender, place)]

    @handles
    def cancel(self, now_s: float, sender: Address, cancel: Cancel) -> list[Effect]:
        """End the attempt and older ones; their dispatcher hears `Ended` when their slots are free."""
        meant = [
            sequence
            for sequence in self._sequences.by_dispatcher(sender)
            if sequence.place.request == cancel.request and sequence.place.attempt <= cancel.attempt
        ]
        if not meant:
            newer = self._sequences.by_key((sender, cancel.request))
            self.stale_total += newer is not None
            return [Send(sender, Ended(cancel.request, cancel.attempt))]
        effects: list[Effect] = []
        for sequence in meant:
            sequence.notify_ended = True
            effects += self._lifecycle.stop(sequence)
        return effects

    def _resume_here(self, sender: Address, older: Sequence, place: Place) -> list[Effect]:
        """Cancel the outgoing migration: the sequence continues here, as the newer attempt."""
        why = Why("migration", "goes on here", (Figure("tokens", len(older.tokens)),))
        older.place = place
        accepted = Send(sender, Accepted(place.request, place.attempt, older.number, 0.0, why))
        return [accepted, *self._migration.migrate_out.cancel(older)]

    def _start_migrated(
        self, now_s: float, sender: Address, place: Place, migration: IncomingMigration
    ) -> list[Effect]:
        """Start from the reserved slots, without the waiting queue: it takes no slot from waiting sequences."""
        sequence = self._sequences.add(sender, place, now_s)
        figures = (Figure("tokens", len(place.tokens)), Figure("filled_tokens", migration.filled))
        why = Why("migration", f"go on from handle {migration.handle}", figures)
        accepted = Send(sender, Accepted(place.request, place.attempt, sequence.number, 0.0, why))
        closed = self._migration.migrate_in.close_room(migration)
        arrived = self._lifecycle.start_migrated(sequence, migration, migration.filled)
        return [accepted, *closed, *arrived, *self._claims.claim_after_migration(sequence, migration.claimed)]

    def _enqueue(self, now_s: float, sender: Address, place: Place) -> list[Effect]:
        before = self._sequences.waiting_tokens()
        sequence = self._sequences.add(sender, place, now_s)
        reused = self._lifecycle.kv_cache.reusable_tokens(sequence)
        eta_s = before * self._steps.totals.s_per_token
        figures = (
            Figure("tokens", len(place.tokens)),
            Figure("free_slots", self._lifecycle.kv_cache.available_slots),
            Figure("reused_tokens", reused),
            Figure("waiting_tokens", before),
            Figure("eta_s", eta_s),
        )
        why = Why("free slots", f"queue behind {self._sequences.waiting_count - 1}", figures)
        accepted = Send(sender, Accepted(place.request, place.attempt, sequence.number, eta_s, why, reused))
        return [accepted, *self._claims.request(sequence)]
