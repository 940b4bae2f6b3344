"""Lets batch sequences rise that got no further for long, for want of slots or of rows in steps.

One that rises gives way no more until it ends. `dunlin/policies/starvation.py` has the rule; the sequences are looked
through at intervals, so that a step costs nothing. Knows of slots only how many there are, and no step.
"""

from collections.abc import Callable
from typing import Any

from dunlin.effects import Effect, Send
from dunlin.messages.dispatch import Risen
from dunlin.policies.starvation import Progress, StarvationBound, choose_rising, why_it_rises
from services.instance.config import InstanceStarvationConfig
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable

_GOING = (SequenceState.ENDING, SequenceState.LEAVING)
"""The states of sequences that are not scheduled here any more."""


class SequenceRise:
    """Owns the time of the next look. `risen_total` counts the sequences that rose.

    `capacity` is the number of token slots: those that rose may need a share of them, too, for a long text takes the
    place of many short ones.
    """

    def __init__(
        self,
        sequences: SequenceTable,
        config: InstanceStarvationConfig,
        max_running: int,
        capacity: Callable[[], int],
    ) -> None:
        self.risen_total = 0
        self._sequences = sequences
        self._bound = StarvationBound(config.batch_wait_s, config.risen_share)
        self._most_risen = self._bound.most_risen(max_running)
        self._capacity = capacity
        self._next_look_s = 0.0
        self._urgent_seen = 0

    def report_fields(self) -> dict[str, Any]:
        """The fields of a report that tell of sequences that rose."""
        return {"risen": self._risen(), "risen_total": self.risen_total}

    def raise_starved(self, now_s: float) -> list[Effect]:
        """Let the batch sequences rise that are due, as far as the share allows, those that stalled longest first.

        The words to their dispatchers.
        """
        if now_s < self._next_look_s and self._urgent_seen == self._sequences.urgent_total:
            return []
        self._next_look_s = now_s + self._bound.look_interval_s
        self._urgent_seen = self._sequences.urgent_total
        due: list[Sequence] = []
        stalled_s: list[float] = []
        for sequence in self._sequences:
            if sequence.gives_way and sequence.state not in _GOING:
                waited_s = _stalled_s(sequence, now_s)
                if self._cause(sequence, waited_s, now_s):
                    due.append(sequence)
                    stalled_s.append(waited_s)
        return self._rise(due, stalled_s, now_s) if due else []

    def _rise(self, due: list[Sequence], stalled_s: list[float], now_s: float) -> list[Effect]:
        risen, effects = self._risen(), list[Effect]()
        slots = sum(sequence.max_length for sequence in self._sequences if sequence.is_risen)
        for index in choose_rising(stalled_s, self._most_risen - risen):
            sequence, place = due[index], due[index].place
            slots += sequence.max_length
            if risen and slots > self._bound.risen_share * self._capacity():
                break  # none that is shorter goes before it
            cause = self._cause(sequence, stalled_s[index], now_s)
            why = why_it_rises(cause, stalled_s[index], risen, self._most_risen)
            self._sequences.rise(sequence)
            self.risen_total += 1
            risen += 1
            effects.append(Send(sequence.dispatcher, Risen(place.request, place.attempt, why)))
        return effects

    def _risen(self) -> int:
        return sum(sequence.is_risen for sequence in self._sequences)

    def _cause(self, sequence: Sequence, stalled_s: float, now_s: float) -> str:
        """Why it is to rise; empty: it is not."""
        after_s = sequence.place.rises_after_s
        if after_s is not None and now_s - sequence.arrived_s >= after_s:
            return "it rose in its dispatcher's queue, or its batch job is about to run out of time"
        return "it made no progress for too long" if self._bound.is_starved(stalled_s) else ""


def _stalled_s(sequence: Sequence, now_s: float) -> float:
    """Seconds without progress. What it had before it was preempted counts: coming back there is none."""
    if sequence.progress is None:
        sequence.progress = Progress(len(sequence.place.tokens), sequence.arrived_s)
    return sequence.progress.stalled_s(len(sequence.tokens) + max(sequence.valid, sequence.kv_tokens), now_s)
