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
from services.instance.objectives.miss_allowance import MissAllowance
from services.instance.objectives.miss_cause import cause_of, reason_of
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.wait_clock import LastTokens, StepTiming, WaitClock


class ObjectiveMisses:
    """Owns the counts, and the unchanged decode batch: its sequences, how many of them are interactive, the time of its
    last tokens, and the strictest objective of its tokens. `objectives` are those of the instance's sequences,
    `allowance` what may be late of them.
    """

    def __init__(self, cluster: ObjectivesConfig, max_running: int) -> None:
        self.objectives = EffectiveObjectives(cluster)
        self.allowance = MissAllowance(max_running)
        self._counts = {is_first: i64([0] * len(MissCause)) for is_first in (True, False)}
        self._batch: list[Sequence] | None = None
        self._last_tokens = LastTokens(0.0)
        self._strictest_s = 0.0
        self._interactive = 0
        self._before: StepTiming | None = None

    def report_fields(self) -> dict[str, Any]:
        """The fields of a report that tell of misses."""
        return {"ttft_misses_total": self._counts[True][:], "tpot_misses_total": self._counts[False][:]}

    def on_repeated(self, timing: StepTiming, running: list[Sequence]) -> list[Effect]:
        """Every sequence of `running` got its next token in this step, and none changed otherwise."""
        tokens, is_same = self._last_tokens, running is self._batch
        if is_same and timing.ended_s - tokens.at_s <= self._strictest_s:
            tokens.at_s, self._before = timing.ended_s, timing
            self.allowance.on_tokens(self._interactive)
            return []
        if not is_same:
            self._batch, tokens = running, LastTokens(timing.ended_s)
            self._last_tokens = tokens
        missed = self._on_tokens(timing, running, tokens)
        if not is_same:
            least_s = [sequence.clock.least_s for sequence in running if sequence.clock is not None]
            self._strictest_s, self._interactive = min(least_s, default=float("inf")), len(least_s)
        tokens.at_s, self._before = timing.ended_s, timing
        return missed

    def on_step(
        self, timing: StepTiming, rows: list[Sequence], sampled: list[Sequence], left: list[Sequence]
    ) -> list[Effect]:
        """These sequences had rows in a step; of these `sampled` got a token, and the rows of `left` left it. The
        misses to record."""
        missed = self._on_tokens(timing, sampled, LastTokens(timing.ended_s))
        for sequence in left:
            sequence.blame(MissCause.INTERRUPTED)
        if len(rows) > len(sampled):
            others = {*sampled, *left}
            for sequence in rows:
                if sequence not in others and sequence.clock is not None:
                    sequence.clock.on_step(timing, self._before)
        self._before = timing
        return missed

    def _on_tokens(self, timing: StepTiming, sampled: list[Sequence], tokens: LastTokens) -> list[Effect]:
        """A token of each came: look which are late, and begin to wait for the next ones, since `tokens`."""
        missed: list[Effect] = []
        interactive = 0
        now_s, running = timing.ended_s, SequenceState.RUNNING
        for sequence in sampled:  # `waits_since_s`, written out: nearly every row is in time
            clock = sequence.clock
            if clock is not None:
                interactive += 1
                since_s = clock.began_s if clock.batch is None else clock.batch.at_s
                if now_s - since_s > clock.least_s:
                    missed += self._on_token(timing, sequence, clock)
                if sequence.state is running:
                    clock.batch = tokens
                else:
                    clock.restart(now_s, is_running=False)
        self.allowance.on_tokens(interactive)
        return missed

    def _on_token(self, timing: StepTiming, sequence: Sequence, clock: WaitClock) -> list[Effect]:
        """A token of it came that may be late, or is its first here."""
        late_s, clock.least_s = timing.ended_s - clock.waits_since_s, self.objectives.tpot_s(sequence)
        is_first = len(sequence.tokens) == sequence.place.prompt_tokens + 1
        objective_s = self.objectives.ttft_s(sequence) if is_first else clock.least_s
        if late_s <= objective_s or sequence.state is SequenceState.ENDING:
            return []
        clock.on_step(timing, self._before)
        return self._miss(sequence, clock, is_first, late_s, objective_s)

    def _miss(
        self, sequence: Sequence, clock: WaitClock, is_first: bool, late_s: float, objective_s: float
    ) -> list[Effect]:
        """Count it. The first miss of a sequence by each cause is recorded, so that a flood stays a trickle."""
        place = sequence.place
        cause = cause_of(clock.parts, objective_s)
        self._counts[is_first][cause] += 1
        if not is_first:
            self.allowance.on_late()
        bit = 1 << (2 * cause + is_first)
        if clock.recorded & bit:
            return []
        clock.recorded |= bit
        why = reason_of(cause, is_first, late_s, objective_s, clock)
        return [Send(Address("client", place.key), Missed(place.key, place.attempt, cause, is_first, why))]
