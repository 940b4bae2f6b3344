"""Starts waiting sequences although an older one does not fit: the policy's choice among those behind it."""

from collections.abc import Callable

from dunlin.effects import Effect
from dunlin.policies.overtake import OvertakePolicy, Overtaking
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.table import SequenceTable

MOST_LOOKED_AT = 32
"""Waiting sequences behind one that does not fit that are looked at."""


class Overtakers:
    """Knows what those that came after a waiting sequence and have started may grow to."""

    def __init__(self, policy: OvertakePolicy, sequences: SequenceTable, lifecycle: SequenceLifecycle) -> None:
        self._policy = policy
        self._sequences = sequences
        self._lifecycle = lifecycle

    def start(
        self,
        blocked: Sequence,
        later: list[Sequence],
        slots_of: Callable[[Sequence], int],
        fits: Callable[[Sequence], bool],
    ) -> list[Effect]:
        """Start those of `later` that fit and may overtake `blocked`: interactive ones alone, and none before batch
        work that rose. A sequence starts with `slots_of` it.
        """
        if blocked.is_batch:
            return []
        chat = [one for one in later[:MOST_LOOKED_AT] if not one.is_claiming and not one.is_batch]
        able = [one for one in chat if self._may_start(one, blocked, ahead_slots=0)]
        if not able:
            return []  # the usual case: nothing has to be counted
        effects: list[Effect] = []
        ahead_slots = self._slots_ahead_of(blocked)
        for sequence in able:
            if self._may_start(sequence, blocked, ahead_slots) and fits(sequence):
                sequence.has_overtaken = True
                effects += self._lifecycle.start(sequence, slots_of(sequence))
                ahead_slots += sequence.max_length
        return effects

    def _may_start(self, sequence: Sequence, blocked: Sequence, ahead_slots: int) -> bool:
        capacity = self._lifecycle.kv_cache.slot_table.capacity
        return self._policy(Overtaking(sequence.max_length, blocked.max_length, ahead_slots, capacity))

    def _slots_ahead_of(self, blocked: Sequence) -> int:
        """What sequences whose turn is later and that hold slots may grow to. An answer that was cut off elsewhere goes
        before all new requests: those that had come before it and overtook nothing had not passed it.
        """
        later = [one for one in self._sequences if one.turn > blocked.turn and not one.is_batch]
        ahead = [one for one in later if one.order > blocked.order or one.has_overtaken]
        return sum(one.max_length for one in ahead if self._lifecycle.kv_cache.held_positions(one))
