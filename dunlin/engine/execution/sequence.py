"""The engine's state of one sequence: its tokens, its sampling parameters, and the slots of its KV.

Knows no step and no other sequence. The instance owns the slots; this only remembers which were named.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from dunlin.engine.attention.spans import Runs, SlotSpan
from dunlin.engine.decoder.sampling.sampling import SamplingInput, is_greedy
from dunlin.messages.engine import Open
from dunlin.messages.types import FinishReason
from dunlin.structured_output.matcher import TextMatcher

ELSEWHERE = -(1 << 62)
"""The first slot of a run of tokens that lie at other engines; those of the run after it are negative, too."""


class ValidKv:
    """How many tokens of a sequence have KV, layer by layer: one number while it is the same in all layers."""

    def __init__(self, layers: int) -> None:
        self._tokens = 0
        self._layers = range(layers)
        self._by_layer: list[int] | None = None

    def tokens(self, layers: range) -> int:
        """The tokens that have KV in every one of `layers`; in all layers, where that is none."""
        return (
            self._tokens
            if self._by_layer is None
            else min(self._by_layer[layers.start : layers.stop] or self._by_layer)
        )

    def set(self, layers: range, tokens: int) -> None:
        """The first `tokens` have KV in `layers`, and no others."""
        if layers == self._layers:
            self._tokens, self._by_layer = tokens, None
            return
        if self._by_layer is None:
            self._by_layer = [self._tokens] * len(self._layers)
        self._by_layer[layers.start : layers.stop] = [tokens] * len(layers)
        if min(self._by_layer) == max(self._by_layer):
            self._tokens, self._by_layer = tokens, None

    def limit(self, tokens: int) -> None:
        """No layer has KV of more than `tokens`."""
        self._tokens = min(self._tokens, tokens)
        if self._by_layer is not None:
            self._by_layer = [min(each, tokens) for each in self._by_layer]

    def limit_each(self, tokens: Sequence[int]) -> None:
        """Layer i has KV of no more than `tokens[i]`."""
        before = self._by_layer or [self._tokens] * len(self._layers)
        by_layer = [min(pair) for pair in zip(before, tokens, strict=True)]
        self._tokens = by_layer[0]
        self._by_layer = None if min(by_layer) == max(by_layer) else by_layer


class SlotMap:
    """Position → slot of one sequence, without gaps. `runs` are another object whenever they change.

    `is_split`: some of the tokens may lie elsewhere.
    """

    def __init__(self) -> None:
        self.length = 0
        self.is_split = False
        self.runs: Runs = (array("q"), array("q"))

    def assign(self, position: int, start: int, length: int) -> None:
        """Positions from `position` lie in the slots from `start`; later positions, if any were known, are forgotten.

        :raises ValueError: the positions before are unknown.
        """
        if position > self.length:
            raise ValueError(f"position {position} is written, but slots are known up to {self.length} only")
        self.is_split |= start < 0
        run_at, run_slot = self.runs
        kept = bisect_left(run_at, position)
        goes_on = kept > 0 and start == run_slot[kept - 1] + position - run_at[kept - 1]
        if not goes_on or kept < len(run_at):
            # New ones: a plan may read the old.
            added = array("q") if goes_on else array("q", [position]), array("q") if goes_on else array("q", [start])
            self.runs = run_at[:kept] + added[0], run_slot[:kept] + added[1]
        self.length = position + length

    def matching(self, position: int, start: int, length: int) -> int:
        """How many positions from `position` on lie in the slots from `start` on already, at most `length`."""
        known = min(length, self.length - position)
        if known <= 0:
            return 0
        slots = self.slots(position, position + known)
        return next((at for at, slot in enumerate(slots) if slot != start + at), known)

    def length_within(self, slots: int) -> int:
        """How many of the first positions lie in slots below `slots`."""
        run_at, run_slot = self.runs
        stops = [*run_at[1:], self.length] if run_at else []
        for at, first, stop in zip(run_at, run_slot, stops, strict=True):
            if first + stop - at > slots:
                return at + max(slots - first, 0)
        return self.length

    def span(self, length: int) -> SlotSpan:
        """Where the first `length` tokens lie, as it is now."""
        return SlotSpan(range(length), *self.runs)

    def here(self, start: int, stop: int) -> SlotSpan:
        """Where tokens `[start, stop)` lie. :raises ValueError: some lie elsewhere."""
        run_at, run_slot = self.runs
        first, last = bisect_right(run_at, start) - 1, bisect_left(run_at, stop)
        if stop > self.length or min(run_slot[first:last]) < 0:
            raise ValueError(f"tokens {start} to {stop} do not all lie here")
        at = array("q", [0, *(each - start for each in run_at[first + 1 : last])])
        slots = array("q", [run_slot[first] + start - run_at[first], *run_slot[first + 1 : last]])
        return SlotSpan(range(start, stop), at, slots)

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
    """One open sequence of a model of `layers`. `tokens` is the prompt followed by everything generated.

    `slots` says where the KV of tokens lies or is to be written, `valid` of which tokens it has been. The
    log-probabilities of the `scored` prompt tokens after the first are known, where any are wanted. `unread`: the next
    token (1, else 0) that a device has chosen, and that was not read from there yet. `matcher`, at the
    beginning of a text, is that of its grammar: it takes in every generated token, those of `opened` first. `adapter`
    is the number of its adapter; 0: it has none. `is_greedy`: every next token is that of the greatest logit, and
    nothing else is told of it.
    """

    def __init__(
        self, opened: Open, max_positions: int, layers: int, matcher: TextMatcher | None = None, adapter: int = 0
    ) -> None:
        self.tokens = list(opened.tokens)
        self.prompt_tokens = opened.prompt_tokens
        self.sampling = opened.sampling
        self.adapter = adapter
        self.slots = SlotMap()
        self.valid = ValidKv(layers)
        self.scored = opened.scored
        self.finish = FinishReason.RUNNING
        self.unread = 0
        self._stop_ids = frozenset(opened.stop_ids)
        self._matcher = matcher
        if matcher is not None:
            matcher.consume(opened.tokens[opened.prompt_tokens :])
        has_exclusions = matcher is not None or (opened.sampling.min_tokens > 0 and len(opened.stop_ids) > 0)
        self.is_greedy = is_greedy(opened.sampling) and not has_exclusions
        self._tokens_max = min(opened.prompt_tokens + opened.max_tokens, max_positions)
        for start, length in zip(opened.extent_start, opened.extent_length, strict=True):
            self.slots.assign(self.slots.length, ELSEWHERE if start < 0 else start, length)
        self.valid.set(range(layers), self.slots.length)

    @property
    def known(self) -> int:
        """Its tokens, with the one that was not read yet."""
        return len(self.tokens) + self.unread

    @property
    def ended(self) -> bool:
        return self.finish is not FinishReason.RUNNING

    def unscored(self, start: int, stop: int) -> range:
        """Those of the positions `[start, stop)` whose next token's log-probability is wanted and not known."""
        if self.sampling.prompt_logprobs is None:
            return range(0)
        return range(max(start, self.scored), min(stop, self.prompt_tokens - 1))

    def issue(self, layers: range, position: int, extents: Sequence[tuple[int, int]]) -> None:
        """Tokens from `position` on are to be written into `extents` (start, length), in order, in `layers`.

        :raises ValueError: no slots are known for a token before `position`.
        """
        at = position
        for start, length in extents:
            same = self.slots.matching(at, start, length)
            if same < length:
                self.slots.assign(at, start, length)
                self.valid.limit(at + same)
            at += length
        self.valid.set(layers, min(self.valid.tokens(layers), position))

    def keep_kv_within(self, slots: Sequence[int]) -> None:
        """By layer there are so many slots now: KV beyond them, or in layers without any, is gone."""
        known = {count: self.slots.length_within(count) for count in set(slots)}
        if min(known.values()) < self.slots.length:
            self.valid.limit_each([known[count] for count in slots])

    def fail(self) -> None:
        """End without a next token: its logits are not finite."""
        self.unread = 0
        self.finish = FinishReason.ERROR

    def next_draw(self) -> SamplingInput:
        """What the choice of the next token depends on."""
        matcher = self._matcher
        is_short = len(self.tokens) < self.prompt_tokens + self.sampling.min_tokens
        # A text that is complete ends, however short.
        excluded = self._stop_ids if is_short and (matcher is None or not matcher.is_complete) else ()
        allowed = None if matcher is None else matcher.allowed(self._stop_ids)
        return SamplingInput(self.sampling, self.tokens, self.prompt_tokens, excluded, allowed)

    def append(self, token: int) -> FinishReason:
        """Append a sampled token; returns whether it was the last."""
        self.tokens.append(token)
        self.unread = 0
        if self._matcher is not None and token not in self._stop_ids:
            self._matcher.consume((token,))
        if token in self._stop_ids:
            self.finish = FinishReason.STOP
        elif len(self.tokens) >= self._tokens_max:
            self.finish = FinishReason.LENGTH
        return self.finish
