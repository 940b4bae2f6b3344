"""The engine's state of one sequence: its tokens, its sampling parameters, and the slots of its KV.

Knows no step and no other sequence. The instance owns the slots; this only remembers which were named.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from dunlin.engine.attention.spans import Runs, SlotSpan
from dunlin.messages.engine import Open
from dunlin.messages.types import FinishReason


class SlotMap:
    """Position → slot of one sequence, without gaps. `runs` are another object whenever they change."""

    def __init__(self) -> None:
        self.length = 0
        self.runs: Runs = (array("q"), array("q"))

    def assign(self, position: int, start: int, length: int) -> None:
        """Positions from `position` lie in the slots from `start`; later positions, if any were known, are forgotten.

        :raises ValueError: the positions before are unknown.
        """
        if position > self.length:
            raise ValueError(f"position {position} is written, but slots are known up to {self.length} only")
        run_at, run_slot = self.runs
        kept = bisect_left(run_at, position)
        goes_on = kept > 0 and start == run_slot[kept - 1] + position - run_at[kept - 1]
        if not goes_on or kept < len(run_at):
            # New ones: a plan may read the old.
            added = array("q") if goes_on else array("q", [position]), array("q") if goes_on else array("q", [start])
            self.runs = run_at[:kept] + added[0], run_slot[:kept] + added[1]
        self.length = position + length

    def span(self, length: int) -> SlotSpan:
        """Where the first `length` tokens lie, as it is now."""
        return SlotSpan(range(length), *self.runs)

    def slots(self, start: int, stop: int) -> Sequence[int]:
        """The slots of positions `[start, stop)`."""
        run_at, run_slot = self.runs
        if run_at and start >= run_at[-1]:
            first = run_slot[-1] - run_at[-1]
            return range(first + start, first + stop)
        slots: list[int] = []
        run = bisect_right(run_at, start) - 1
        while start < stop:
            end = min(stop, run_at[run + 1] if run + 1 < len(run_at) else stop)
            first = run_slot[run] - run_at[run]
            slots += range(first + start, first + end)
            start, run = end, run + 1
        return slots


class EngineSequence:
    """One open sequence. `tokens` is the prompt followed by everything generated."""

    def __init__(self, opened: Open, max_positions: int) -> None:
        self.tokens = list(opened.tokens)
        self.prompt_tokens = opened.prompt_tokens
        self.sampling = opened.sampling
        self.slots = SlotMap()
        self.finish = FinishReason.RUNNING
        self._stop_ids = frozenset(opened.stop_ids)
        self._tokens_max = min(opened.prompt_tokens + opened.max_tokens, max_positions)
        for start, length in zip(opened.extent_start, opened.extent_length, strict=True):
            self.slots.assign(self.slots.length, start, length)

    @property
    def ended(self) -> bool:
        return self.finish is not FinishReason.RUNNING

    def fail(self) -> None:
        """End without a next token: its logits are not finite."""
        self.finish = FinishReason.ERROR

    def append(self, token: int) -> FinishReason:
        """Append a sampled token; returns whether it was the last."""
        self.tokens.append(token)
        if token in self._stop_ids:
            self.finish = FinishReason.STOP
        elif len(self.tokens) >= self._tokens_max:
            self.finish = FinishReason.LENGTH
        return self.finish
