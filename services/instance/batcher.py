"""Gives slots to those who wait and to those who run, and composes steps of what has them.

Decides who starts and who is preempted; how a sequence then lives is `lives.py`'s.
"""

from collections.abc import Callable

from dunlin.effects import Address, Effect, Send
from dunlin.messages.engine import Step
from dunlin.policies.evict import Candidate, EvictPolicy
from services.instance import suspects
from services.instance.config import SchedulerConfig
from services.instance.lives import Lives
from services.instance.sequences import Sequence, Sequences, State
from services.instance.slab import Slab
from services.instance.steps import OUTSTANDING_MAX, Steps


class Batcher:
    """Settles everything that can be settled, after every change."""

    def __init__(
        self,
        engine: Address,
        config: SchedulerConfig,
        sequences: Sequences,
        lives: Lives,
        steps: Steps,
        evict: EvictPolicy,
        may_run: Callable[[list[Sequence]], list[Sequence]],
    ) -> None:
        self._engine = engine
        self._config = config
        self._sequences = sequences
        self._lives = lives
        self._steps = steps
        self._evict = evict
        self._may_run = may_run

    def settle(self) -> list[Effect]:
        """Start who may start, and keep the engine's queue filled."""
        effects: list[Effect] = []
        while self._steps.outstanding < OUTSTANDING_MAX:
            step = self._again()
            if step is None:
                effects += self._admit()
                running = suspects.may_run(self._may_run(self._sequences.running))
                chosen = self._steps.choose(running)
                if not chosen:
                    break
                granted, turns = self._secure(chosen)
                effects += turns
                if not granted:
                    break
                step = self._steps.compose(running, granted, self._slab)
            effects.append(Send(self._engine, step))
        return effects

    def _again(self) -> Step | None:
        """The next step, if nobody waits and everybody only decodes on, as in the one before."""
        if self._sequences.waiting_count:
            return None
        running = self._may_run(self._sequences.running)
        return self._steps.again(running, self._slot_of)

    def _slot_of(self, sequence: Sequence) -> int | None:
        if not self._grow(sequence, 1):
            return None
        ((slot, _),) = self._slab.extents(sequence, sequence.computed, sequence.computed + 1)
        return slot

    def restore(self) -> list[Effect]:
        """Let those first in the queue come back from the host tier now: their copies need no room in a step."""
        return self._admit(only_kept=True)

    @property
    def _slab(self) -> Slab:
        return self._lives.slab

    @property
    def _capacity(self) -> int:
        return self._slab.table.capacity

    def _admit(self, only_kept: bool = False) -> list[Effect]:
        """Start waiting sequences in their order until one does not fit: nobody overtakes."""
        effects: list[Effect] = []
        if not self._sequences.waiting_count:
            return effects
        for sequence in self._sequences.waiting():
            if sequence.is_claiming:
                continue  # it waits for the kvstore, not for slots
            if only_kept and not sequence.kept:
                break
            wanted = self._first_slots(sequence)
            if self._sequences.running_count >= self._config.max_running:
                break
            if self._slab.room < self._slab.needed(sequence, wanted) + self._headroom(sequence):
                break
            effects += self._lives.start(sequence, wanted)
        return effects

    def _first_slots(self, sequence: Sequence) -> int:
        """Room for the known tokens and a run ahead, never more than the sequence can need."""
        return min(len(sequence.tokens) + self._ahead(), sequence.longest)

    def _ahead(self) -> int:
        """Slots given ahead of need: more in a large slab with much room, where they cost nobody anything."""
        ahead, plenty = self._config.allocate_ahead_tokens, self._slab.room > self._capacity // 2
        return max(ahead, min(4 * ahead, self._capacity // 64)) if plenty else ahead

    def _headroom(self, sequence: Sequence) -> int:
        """Slots kept for those that run, so that a newcomer is not preempted at once. None when the slab is empty.

        More is kept before one that was preempted: its way to the host tier and back costs what many steps do, so those
        that run should get far, or to their end, before they need its slots again.
        """
        if self._slab.room == self._capacity:
            return 0
        ahead = self._sequences.running_count * self._config.allocate_ahead_tokens
        if not sequence.preempted:
            return min(ahead // 2, self._capacity // 8)
        to_come = 0
        for running in self._sequences.running:
            # One that arrived may have more than it needs.
            to_come += max(0, running.longest - self._slab.held(running))
        return min(to_come, max(ahead, self._capacity // 4))

    def _secure(self, chosen: list[tuple[Sequence, int]]) -> tuple[list[tuple[Sequence, int]], list[Effect]]:
        """Find slots for each row, the oldest first; who gets none has no row in this step."""
        effects: list[Effect] = []
        without: dict[Sequence, None] = {}
        for sequence, tokens in chosen:
            if sequence.computed + tokens <= sequence.run[1]:
                continue  # it has them already, as nearly every row that decodes
            if sequence.state is not State.RUNNING or self._grow(sequence, tokens):
                continue
            effects += self._make_room(sequence)
            if sequence.state is State.RUNNING and not self._grow(sequence, tokens):
                without[sequence] = None
        if effects or without:  # who was preempted for the sake of an older one has no row either
            chosen = [(one, tokens) for one, tokens in chosen if one.state is State.RUNNING and one not in without]
        return chosen, effects

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        needed = sequence.computed + tokens - self._slab.held(sequence)
        if needed <= 0:
            return True
        ahead = min(self._ahead(), sequence.longest - self._slab.held(sequence))
        return self._slab.grow(sequence, max(needed, ahead)) or self._slab.grow(sequence, needed)

    def _make_room(self, sequence: Sequence) -> list[Effect]:
        """Preempt one, unless slots are on their way back already."""
        if self._is_room_coming(sequence):
            return []
        running = self._sequences.running
        candidates = [Candidate(each.name, rank, self._slab.gain(each)) for rank, each in enumerate(running)]
        choice = self._evict(candidates)
        return self._lives.preempt(running[choice.index], choice.why)

    def _is_room_coming(self, sequence: Sequence) -> bool:
        """Whether slots are being given back, or a younger one that could give some is on its way into the slab."""
        going = (State.DRAINING, State.ASKING, State.SPILLING, State.LEAVING, State.ENDING)
        for other in self._sequences:
            if other.state in going and self._slab.held(other):
                return True
            if other.state is State.RESTORING and other.turn > sequence.turn:
                return True
        return False
