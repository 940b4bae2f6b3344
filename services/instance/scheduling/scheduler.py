"""Allocates slots to waiting and running sequences, and composes steps of the sequences that have slots.

Decides which sequences start and which are preempted; `lifecycle.py` carries the transitions out.
"""

from collections.abc import Callable
from typing import Any

from dunlin.effects import Address, Effect, Send
from dunlin.kv.prefix_hash import BLOCK_TOKENS
from dunlin.messages.engine import Step
from dunlin.messages.types import Figure, RejectedOption, RequestClass, Why
from dunlin.policies.victim import SlotNeed, VictimCandidate, VictimPolicy
from services.instance.config import SchedulerConfig
from services.instance.kv.kv_cache import KvCache
from services.instance.scheduling.interrupts import RowInterrupts
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.overtakers import Overtakers
from services.instance.scheduling.step_ledger import MAX_OUTSTANDING_STEPS, StepLedger
from services.instance.scheduling.steps import BatchComposer
from services.instance.sequence import crash_suspects
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable

_FREEING = (SequenceState.DRAINING, SequenceState.ASKING, SequenceState.SPILLING, SequenceState.ENDING)
_GIVING_UP = (*_FREEING, SequenceState.LEAVING)
"""The states of a sequence whose slots will be free without another decision; one that is LEAVING may come back."""
_SWAPPING = (SequenceState.SPILLING, SequenceState.RESTORING)


class Scheduler:
    """Admits, preempts and composes steps after every change."""

    def __init__(
        self,
        engine: Address,
        config: SchedulerConfig,
        sequences: SequenceTable,
        lifecycle: SequenceLifecycle,
        steps: StepLedger,
        composer: BatchComposer,
        interrupts: RowInterrupts,
        victim_policy: VictimPolicy,
        overtakers: Overtakers,
        not_held_for_handoff: Callable[[list[Sequence]], list[Sequence]],
        taken_rows: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._config = config
        self._sequences = sequences
        self._lifecycle = lifecycle
        self._steps = steps
        self._composer = composer
        self._interrupts = interrupts
        self._victim_policy = victim_policy
        self._overtakers = overtakers
        self._not_held_for_handoff = not_held_for_handoff
        self._taken_rows = taken_rows
        # The first of the waiting sequences, which did not fit, the table's count of changes then, and the slots that
        # were available when it was looked at last.
        self._blocked: tuple[Sequence, int, int] | None = None
        batch_work, need = VictimCandidate("", 0, 1, RequestClass.BATCH), SlotNeed(may_preempt=True, is_waiting=True)
        self._preempts_batch = victim_policy([batch_work], need) is not None

    def report_fields(self) -> dict[str, Any]:
        """The fields of a report that tell of batch work."""
        waiting, running = self._sequences.batch_work()
        given = running if self._preempts_batch else []
        return {
            "preempts_batch": self._preempts_batch,
            "preemptible_slots": sum(self._kv_cache.slots_gained_without(each) for each in given),
            "preemptible_running": len(given),
            "batch_waiting": len(waiting),
            "batch_waiting_tokens": sum(len(each.tokens) for each in waiting),
        }

    def schedule(self, now_s: float) -> list[Effect]:
        """Start the waiting sequences that fit, and keep the engine's queue filled."""
        effects = self._interrupts.decide(now_s)
        if self._preempts_batch and self._steps.outstanding >= MAX_OUTSTANDING_STEPS:
            effects += self._make_room_early()
        while self._steps.outstanding < MAX_OUTSTANDING_STEPS and not self._is_stalled():
            step = self._repeat_last_step()
            if step is None:
                effects += self._admit()
                running = crash_suspects.runnable(self._runnable())
                chosen = self._composer.choose_rows(running, self._kv_cache, now_s)
                if not chosen:
                    break
                granted, turns = self._allocate_rows(chosen)
                effects += turns
                if not granted:
                    break
                step = self._composer.compose(running, granted, self._kv_cache)
            self._steps.forecast.on_sent(now_s, step)
            effects.append(Send(self._engine, step))
        return effects + self._interrupts.resume_if_idle()

    def _is_stalled(self) -> bool:
        swaps = self._lifecycle.swaps and any(each.state in _SWAPPING for each in self._sequences)
        return swaps or self._steps.is_recalling

    def _repeat_last_step(self) -> Step | None:
        """The next step, if no sequence can start and all running ones only decode, as in the last step."""
        if self._sequences.waiting_count and not self._none_can_start():
            return None
        return self._composer.repeat(self._runnable(), self._next_slot)

    def _none_can_start(self) -> bool:
        """Whether the first of the waiting sequences still does not fit, and nothing has changed but tokens.

        Slots of a group or of a migration come back without a change of the table: those behind the first may fit then.
        """
        if self._blocked is None or self._blocked[1] != self._sequences.changes:
            return False
        first, changes, slots = self._blocked
        available = self._kv_cache.available_slots
        self._blocked = first, changes, available
        return available <= slots and not self._fits(first)

    def _runnable(self) -> list[Sequence]:
        """The sequences that may have a row."""
        return self._not_held_for_handoff(self._steps.without_held(self._sequences.running))

    def _next_slot(self, sequence: Sequence) -> int | None:
        if not self._allocate(sequence, 1):
            return None
        ((slot, _),) = self._kv_cache.extents(sequence, sequence.issued, sequence.issued + 1)
        return slot

    def admit_restorable(self) -> list[Effect]:
        """Start the restores at the head of the queue: their copies need no tokens of a step's budget."""
        return self._admit(only_kept=True)

    @property
    def _kv_cache(self) -> KvCache:
        return self._lifecycle.kv_cache

    @property
    def _capacity(self) -> int:
        return self._kv_cache.slot_table.capacity

    def _admit(self, only_kept: bool = False) -> list[Effect]:
        """Start waiting sequences in their order until one does not fit, and of those behind it what may overtake."""
        effects: list[Effect] = []
        self._blocked = None
        waiting = self._sequences.waiting()
        for at, sequence in enumerate(waiting):
            if sequence.is_claiming:
                continue  # it waits for the kvstore, not for slots
            if only_kept and not sequence.kept:
                break
            wanted = self._initial_slots(sequence)
            if self._missing_slots(sequence, wanted) > 0:
                effects += self._make_room(sequence, wanted)
                if self._missing_slots(sequence, wanted) > 0:
                    self._sequences.blocked_s = self._sequences.now_s
                    later = [] if only_kept else waiting[at + 1 :]
                    effects += self._overtakers.start(sequence, later, self._initial_slots, self._fits)
                    if not (only_kept or any(each.is_claiming for each in waiting)):  # all that could start was seen
                        self._blocked = sequence, self._sequences.changes, self._kv_cache.available_slots
                    break
            effects += self._lifecycle.start(sequence, wanted)
        return effects

    def _fits(self, sequence: Sequence) -> bool:
        return self._missing_slots(sequence, self._initial_slots(sequence)) <= 0

    def _missing_slots(self, sequence: Sequence, wanted: int) -> int:
        """Slots that must be freed before a waiting sequence may start; 0 or less: it may start now."""
        if self._has_no_row():
            return max(1, wanted)
        needed = self._kv_cache.slots_needed(sequence, wanted) + self._headroom(sequence)
        return needed - self._kv_cache.available_slots

    def _has_no_row(self) -> bool:
        """Whether as many sequences run as may, or will once they are restored or arrive."""
        return self._taken_rows() >= self._config.max_running

    def _make_room(self, sequence: Sequence, wanted: int) -> list[Effect]:
        """Preempt running sequences for a waiting one, as far as the victim policy allows it for its class."""
        effects: list[Effect] = []
        # A victim gives its row up at once and its slots later: slots on their way are no row.
        while self._has_no_row() or self._missing_slots(sequence, wanted) > self._slots_coming():
            preempted = self._cancel_restore(sequence) or self._preempt_one(sequence, is_waiting=True)
            if preempted is None:
                break
            effects += preempted
        return effects

    def _cancel_restore(self, sequence: Sequence) -> list[Effect]:
        """Cancel the restore of the youngest batch sequence, if an interactive one waits for slots or a row."""
        if not self._preempts_batch or not sequence.place.may_preempt:
            return []
        restoring = [one for one in self._sequences if _is_restoring(one) and one.gives_way]
        if not restoring:
            return []
        youngest = max(restoring, key=lambda one: one.turn)
        rejected = RejectedOption("finish it", f"{sequence.name} waits for slots, and what is kept stays kept")
        held = Figure("held_slots", self._kv_cache.slots_gained_without(youngest))
        return self._lifecycle.cancel_restore(youngest, Why("cancel the restore", youngest.name, (held,), (rejected,)))

    def _make_room_early(self) -> list[Effect]:
        """Preempt for the first of the waiting sequences before a step may hold it: its slots take a while to come."""
        first = self._sequences.first_to_start()
        return [] if first is None or first.is_batch else self._make_room(first, self._initial_slots(first))

    def _initial_slots(self, sequence: Sequence) -> int:
        """Slots for the known tokens and a lookahead, never more than the sequence can need."""
        return min(len(sequence.tokens) + self._lookahead_slots(), sequence.max_length)

    def _lookahead_slots(self) -> int:
        """Slots allocated ahead of need: more in a large KV cache with many free slots, where they cost nothing."""
        ahead, plenty = self._config.allocate_ahead_tokens, self._kv_cache.available_slots > self._capacity // 2
        return max(ahead, min(4 * ahead, self._capacity // 64)) if plenty else ahead

    def _headroom(self, sequence: Sequence) -> int:
        """Slots kept free for running sequences, so that a new one is not preempted at once; 0 if none runs.

        More are kept before a preempted one starts again: its copies to the host tier and back cost as much as many
        steps, so the running sequences should get far, or to their end, before they need its slots again.
        """
        if self._kv_cache.available_slots == self._capacity:
            return 0
        ahead = self._sequences.running_count * self._config.allocate_ahead_tokens
        if not sequence.preempted:
            return min(ahead // 2, self._capacity // 8)
        to_come = 0
        for running in self._sequences.running:
            # One that migrated here may have more than it needs.
            to_come += max(0, running.max_length - self._kv_cache.held_positions(running))
        return min(to_come, max(ahead, self._capacity // 4))

    def _allocate_rows(self, chosen: list[tuple[Sequence, int]]) -> tuple[list[tuple[Sequence, int]], list[Effect]]:
        """Allocate slots for each row, the oldest first; a sequence that gets none has no row in this step."""
        effects: list[Effect] = []
        without: dict[Sequence, None] = {}
        for sequence, tokens in chosen:
            if sequence.issued + tokens <= sequence.slot_run[1]:
                continue  # it has them already, as nearly every row that decodes
            if sequence.state is not SequenceState.RUNNING or self._allocate(sequence, tokens):
                continue
            if not self._slots_are_coming(sequence):
                effects += self._preempt_one(sequence) or []
            if sequence.state is SequenceState.RUNNING and not self._allocate(sequence, tokens):
                without[sequence] = None
        if effects or without:  # one that was preempted for an older one has no row either
            chosen = [
                (one, tokens) for one, tokens in chosen if one.state is SequenceState.RUNNING and one not in without
            ]
        return chosen, effects

    def _allocate(self, sequence: Sequence, tokens: int) -> bool:
        needed = sequence.issued + tokens - self._kv_cache.held_positions(sequence)
        if needed <= 0:
            return True
        ahead = min(self._lookahead_slots(), sequence.max_length - self._kv_cache.held_positions(sequence))
        return self._kv_cache.allocate(sequence, max(needed, ahead)) or self._kv_cache.allocate(sequence, needed)

    def _preempt_one(self, sequence: Sequence, is_waiting: bool = False) -> list[Effect] | None:
        """Preempt the sequence that the victim policy chooses for this one's need; None: it chooses none."""
        holders = self._sequences.running_or_parked()
        candidates = [self._victim_candidate(each, rank) for rank, each in enumerate(holders)]
        may_preempt = sequence.place.may_preempt or (is_waiting and sequence.is_risen and self._holds_up_others())
        choice = self._victim_policy(candidates, SlotNeed(_scheduled_as(sequence), may_preempt, is_waiting))
        return None if choice is None else self._lifecycle.preempt(holders[choice.index], choice.why)

    def _victim_candidate(self, sequence: Sequence, rank: int) -> VictimCandidate:
        return VictimCandidate(
            sequence.name,
            rank,
            self._kv_cache.slots_gained_without(sequence),
            _scheduled_as(sequence),
            sequence.place.may_preempt,
            sequence.state is SequenceState.PARKED,
            sequence.valid - sequence.kept_tokens < BLOCK_TOKENS,
        )

    def _holds_up_others(self) -> bool:
        """Whether a sequence that could preempt batch work for itself waits, perhaps behind one that could not."""
        return any(waiting.place.may_preempt for waiting in self._sequences.waiting())

    def _slots_coming(self) -> int:
        """Slots that preempted and ended sequences are about to free."""
        freeing = (other for other in self._sequences if other.state in _FREEING or other.is_restore_cancelled)
        return sum(self._kv_cache.slots_gained_without(other) for other in freeing)

    def _slots_are_coming(self, sequence: Sequence) -> bool:
        """Whether slots are about to be freed, or a younger sequence that could free some is being restored."""
        for other in self._sequences:
            if other.state in _GIVING_UP and self._kv_cache.held_positions(other):
                return True
            if other.state is SequenceState.RESTORING and other.turn > sequence.turn:
                return True
        return False


def _is_restoring(sequence: Sequence) -> bool:
    return sequence.state is SequenceState.RESTORING and not sequence.is_restore_cancelled


def _scheduled_as(sequence: Sequence) -> RequestClass:
    """The class that a victim policy sees: batch work that rose is no victim of interactive sequences."""
    return RequestClass.INTERACTIVE if sequence.is_risen else sequence.place.request_class
