"""Tokens of interactive sequences that came later than their objectives: counted by cause, recorded with a reason.

Decides nothing, and tells no peer: `Missed` is sent to the client's address, as dispatchers' lifecycle events are.

While a decode batch does not change and misses nothing, a step costs one comparison.
"""

from typing import Any

from dunlin.effects import Address, Effect, Send
from dunlin.messages.lifecycle import MissCause, Missed
from dunlin.messages.types import i64
from services.instance.config import ObjectivesConfig
from services.instance.objectives.effective import EffectiveObjectives
from services.instance.objectives.miss_cause import cause_of, reason_of
from services.instance.sequence.table import Sequence, SequenceState
from services.instance.sequence.wait_clock import LastTokens, StepTiming


class ObjectiveMisses:
    """Owns the counts, and the unchanged decode batch: its sequences, the time of its last tokens, and the strictest
    objective of its tokens. `objectives` are those of the instance's sequences.
    """

    def __init__(self, cluster: ObjectivesConfig) -> None:
        self.objectives = EffectiveObjectives(cluster)
        self._counts = {is_first: i64([0] * len(MissCause)) for is_first in (True, False)}
        self._batch: list[Sequence] | None = None
        self._last_tokens = LastTokens(0.0)
        self._strictest_s = 0.0
        self._before: StepTiming | None = None

    def report_fields(self) -> dict[str, Any]:
        """The fields of a report that tell of misses."""
        return {"ttft_misses_total": self._counts[True][:], "tpot_misses_total": self._counts[False][:]}

    def on_repeated(self, timing: StepTiming, running: list[Sequence]) -> list[Effect]:
        """Every sequence of `running` got its next token in this step, and none changed otherwise."""
        effects: list[Effect] = []
        tokens, is_same = self._last_tokens, running is self._batch
        if not is_same or timing.ended_s - tokens.at_s > self._strictest_s:
            for sequence in running:
                effects += self._on_token(timing, sequence)
            if not is_same:
                tokens = self._last_tokens = LastTokens(timing.ended_s)
                self._batch = running
                tpots_s = [self.objectives.tpot_s(each) for each in running if each.clock is not None]
                self._strictest_s = min(tpots_s, default=float("inf"))
            for sequence in running:
                if sequence.clock is not None:
                    sequence.clock.batch = tokens
        tokens.at_s, self._before = timing.ended_s, timing
        return effects

    def on_step(
        self, timing: StepTiming, rows: list[Sequence], sampled: list[Sequence], left: list[Sequence]
    ) -> list[Effect]:
        """These sequences had rows in a step; of these `sampled` got a token, and the rows of `left` left it. The
        misses to record."""
        effects: list[Effect] = []
        for sequence in sampled:
            effects += self._on_token(timing, sequence)
        for sequence in left:
            sequence.blame(MissCause.INTERRUPTED)
        if len(rows) > len(sampled):
            others = dict.fromkeys(rows)
            for sequence in (*sampled, *left):
                others.pop(sequence, None)
            for sequence in others:
                if sequence.clock is not None:
                    sequence.clock.on_step(timing, self._before)
        self._before = timing
        return effects

    def _on_token(self, timing: StepTiming, sequence: Sequence) -> list[Effect]:
        """A token of it came: look whether it is late, and begin to wait for the next one."""
        clock, place, now_s = sequence.clock, sequence.place, timing.ended_s
        if clock is None or sequence.state is SequenceState.ENDING:
            return []
        late_s = now_s - clock.waits_since_s
        is_first = len(sequence.tokens) == place.prompt_tokens + 1
        objective_s = self.objectives.ttft_s(sequence) if is_first else self.objectives.tpot_s(sequence)
        missed: list[Effect] = []
        if late_s > objective_s:
            clock.on_step(timing, self._before)
            missed = self._miss(sequence, is_first, late_s, objective_s)
        clock.restart(now_s, sequence.state is SequenceState.RUNNING)
        return missed

    def _miss(self, sequence: Sequence, is_first: bool, late_s: float, objective_s: float) -> list[Effect]:
        """Count it. The first miss of a sequence by each cause is recorded, so that a flood stays a trickle."""
        clock, place = sequence.clock, sequence.place
        assert clock is not None
        cause = cause_of(clock.parts, objective_s)
        self._counts[is_first][cause] += 1
        bit = 1 << (2 * cause + is_first)
        if clock.recorded & bit:
            return []
        clock.recorded |= bit
        why = reason_of(cause, is_first, late_s, objective_s, clock)
        return [Send(Address("client", place.key), Missed(place.key, place.attempt, cause, is_first, why))]
