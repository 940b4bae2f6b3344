"""The batch policy of ConServe (4.2, 4.5): steps as large as the objectives of interactive requests allow, filled up
with batch work. Knows no slot, no engine and no queue.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from dunlin.cost.models import BatchCounts
from dunlin.messages.types import RequestClass
from dunlin.policies.step_budget import BatchCandidate, StepBudget
from dunlin.policies.step_length import prompt_step_s

LEAST_CHUNK_TOKENS = 64
"""The oldest interactive prompt gets so many tokens even where decode rows take all the time that a step may take; with
`harvest` half of them are the shortest one's. So does the oldest prompt of batch work that was starved, where
interactive ones do."""

AIM_SHARE = 0.95
"""Share of the objective per token up to which `harvest` fills a step in which interactive rows decode: with steps of
just the objective chance decides whether a stream keeps it, for predictions are off by some percent."""

PRESSED_SHARE = 0.5
"""The same where interactive sequences hold more than half of the slots: the longer their answers take, the more of
them hold slots at a time, and requests that come would wait for some. Batch work has few slots left then anyway."""

STEPS_TO_FIRST_TOKEN = 3
"""Steps within which a prompt that comes now has its first token: of the one that runs, the queued one and its own,
none is to take more than its part of the TTFT objective."""

SLACK_SHARE = 0.01
"""Share of the TTFT objective by which `harvest` lets batch rows lengthen a step that computes an interactive prompt: a
prompt passes through several steps."""


def slo_aware(candidates: Sequence[BatchCandidate], budget: StepBudget) -> list[int]:
    """Interactive rows first, then batch rows in what the objective leaves (Algorithm 1 of ConServe).

    The predicted time of a step stays under `tpot_s` where interactive rows decode, else under `ttft_s`. Interactive
    decode rows are never held up; then come chunks of interactive prompts, batch decode rows and chunks of batch
    prompts, each oldest first. Starved batch rows (`is_risen`) decode in every step, and the first chunk of the oldest
    of their prompts is in every step, too; what else they get is left over by interactive rows, and goes to them before
    other batch rows. Without interactive rows there is no objective: all decode rows, and chunks up to
    `most_tokens`. Where nothing predicts steps, one holds `tokens`, and no more than fit the objective at the pace of
    the last one (`token_s`): the chunks of a long prompt take longer one after the other.
    """
    return _fill(_Kinds(candidates), candidates, budget, budget.most_tokens, _Step.add_chunks)


def harvest(candidates: Sequence[BatchCandidate], budget: StepBudget) -> list[int]:
    """As `slo_aware`, but of interactive prompts those with fewest tokens left come first, and a step that computes one
    leaves batch work out: all chunks of batch prompts, and batch decode rows as far as they would lengthen it by more
    than `SLACK_SHARE` of `ttft_s`.

    A step with interactive decode rows takes no more than `AIM_SHARE` of `tpot_s`. Another one takes no more than a
    `STEPS_TO_FIRST_TOKEN`th of `ttft_s`: behind a long prompt's chunk of the whole objective, and a second one that is
    queued, the next request would miss its own. Where prompts crowd (`CROWDED_TIMES`), they get as much time as the
    interactive rows that decode; and where a first token would be late, a step takes `LATE_TIMES` as long, as often as
    tokens may be late (`prompt_step_s`). Where interactive sequences hold more than half of the slots, batch work
    lengthens their steps to `PRESSED_SHARE` of `tpot_s` at most.

    A step with an interactive prompt is bound by arithmetic already: a batch chunk would take as long in it as in a
    later one. A decode row reads all its KV. The first token would wait for both. Of a starved prompt
    `LEAST_CHUNK_TOKENS` join. A long prompt gives way to shorter ones, as in PecSched (5.1), but for as many in each
    step once it is the oldest; where they are all that fits, half of them are the shortest prompt's.
    """
    kinds, add_prompts = _Kinds(candidates), _Step.add_shortest_first
    aim = replace(budget, tpot_s=AIM_SHARE * budget.tpot_s, ttft_s=budget.ttft_s / STEPS_TO_FIRST_TOKEN)
    if not kinds.prompts:
        if _is_pressed(kinds, budget):
            aim.tpot_s = PRESSED_SHARE * budget.tpot_s
        return _fill(kinds, candidates, aim, aim.most_tokens, add_prompts)
    kinds.batch_prompts = []
    aim.tpot_s = max(aim.tpot_s, prompt_step_s(kinds.decodes, kinds.prompts, candidates, aim, budget.ttft_s))
    return _fill(kinds, candidates, aim, LEAST_CHUNK_TOKENS, add_prompts, SLACK_SHARE * budget.ttft_s)


class _Kinds:
    """The candidates' indices by class and kind, oldest first."""

    def __init__(self, candidates: Sequence[BatchCandidate]) -> None:
        found: dict[tuple[bool, bool, bool], list[int]] = {}
        for index, each in enumerate(candidates):
            kind = each.request_class is RequestClass.BATCH, each.is_risen, each.is_decode
            found.setdefault(kind, []).append(index)
        self.decodes, self.prompts = found.get((False, False, True), []), found.get((False, False, False), [])
        self.risen_decodes, self.risen_prompts = found.get((True, True, True), []), found.get((True, True, False), [])
        self.batch_decodes, self.batch_prompts = found.get((True, False, True), []), found.get((True, False, False), [])


def _is_pressed(kinds: _Kinds, budget: StepBudget) -> bool:
    """Whether interactive rows hold more than half of the slots: by their own tokens, and by what batch rows leave of
    the slots that are taken, for tokens in a prefix that several share count for each.
    """
    batch = (*kinds.batch_decodes, *kinds.batch_prompts, *kinds.risen_decodes, *kinds.risen_prompts)
    own, others = (sum(budget.contexts[index] for index in rows) for rows in (kinds.decodes, batch))
    return 2 * min(own, budget.taken_slots - others) > budget.slots


def _fill(
    kinds: _Kinds,
    candidates: Sequence[BatchCandidate],
    budget: StepBudget,
    most_risen_tokens: int,
    add_prompts: Callable[["_Step", list[int], int], None],
    batch_s: float = float("inf"),
) -> list[int]:
    """A step of these rows, with interactive prompts as `add_prompts` adds them. In one with interactive rows chunks of
    starved prompts have `most_risen_tokens` at most, and what batch work is added then makes it `batch_s` longer at
    most.
    """
    if not kinds.decodes and not kinds.prompts:
        step = _Step(candidates, replace(budget, tokens=budget.most_tokens), float("inf"))
        step.add_all_decodes(kinds.risen_decodes)
        step.add_all_decodes(kinds.batch_decodes)
        step.add_chunks(kinds.risen_prompts + kinds.batch_prompts, LEAST_CHUNK_TOKENS)
        return step.taken
    step = _Step(candidates, budget, budget.tpot_s if kinds.decodes else budget.ttft_s)
    step.add_all_decodes(kinds.decodes)
    step.add_all_decodes(kinds.risen_decodes)
    add_prompts(step, kinds.prompts, LEAST_CHUNK_TOKENS)
    step.add_chunks(kinds.risen_prompts, LEAST_CHUNK_TOKENS, most_risen_tokens)
    step.add_at_most(batch_s)
    step.add_decodes_that_fit(kinds.batch_decodes)
    step.add_chunks(kinds.batch_prompts)
    return step.taken


class _Step:
    """A step that is being filled: `taken` are the tokens per candidate. It may take `most_s`."""

    def __init__(self, candidates: Sequence[BatchCandidate], budget: StepBudget, most_s: float) -> None:
        self.taken = [0] * len(candidates)
        self._candidates = candidates
        self._contexts = budget.contexts
        self._times, self._most_s = budget.times, most_s
        self._most_tokens = budget.most_tokens if self._times is not None else _guessed_tokens(budget, most_s)
        self._counts = BatchCounts()
        self._kept: tuple[int, int] | None = None
        """(tokens, tokens before them) of a chunk that is to fit beside what is added."""
        self._tokens = 0

    def add_all_decodes(self, indices: list[int]) -> None:
        """Add the decode rows, whatever they take."""
        for index in indices:
            self.taken[index] = 1
            self._tokens += 1
            self._counts.add_decode(self._contexts[index] + 1)

    def add_at_most(self, seconds: float) -> None:
        """From now on the step becomes that much longer at most."""
        if self._times is not None:
            self._most_s = min(self._most_s, self._times.step_s(self._counts) + seconds)

    def add_decodes_that_fit(self, indices: list[int]) -> None:
        """Add decode rows, oldest first, until one more would not fit."""
        sums = [0]
        for index in indices:
            sums.append(sums[-1] + self._contexts[index] + 1)
        fits = _most(
            min(len(indices), self._most_tokens - self._tokens),
            lambda rows: self._fits(
                replace(
                    self._counts,
                    decode_rows=self._counts.decode_rows + rows,
                    decode_context=self._counts.decode_context + sums[rows],
                )
            ),
        )
        self.add_all_decodes(indices[:fits])

    def add_chunks(self, indices: list[int], least: int = 0, most: int | None = None) -> None:
        """Add prompts or chunks of them, oldest first, until none fits; the first gets at least `least` tokens, and all
        of them at most `most`.
        """
        stop = self._most_tokens if most is None else min(self._most_tokens, self._tokens + most)
        for index in indices:
            remaining = self._candidates[index].remaining_tokens
            room = min(remaining, stop - self._tokens)
            chunk = max(self._longest_chunk(index, room), min(least, remaining))
            if chunk < 1:
                return
            least = 0
            self.taken[index] = chunk
            self._tokens += chunk
            self._counts.add_prefill(chunk, self._contexts[index])

    def add_shortest_first(self, indices: list[int], least: int) -> None:
        """Add prompts or chunks of them, fewest tokens left first, until none fits; the oldest gets at least `least`
        tokens, so that shorter ones do not starve it. Where nothing else is left, half of them go to the shortest: it
        would wait for the whole of a long prompt.
        """
        order = sorted(indices, key=lambda index: self._candidates[index].remaining_tokens)  # stable
        at = order.index(indices[0]) if indices else 0
        if at:
            oldest, first = indices[0], order[0]
            shared = min(least // 2, self._candidates[first].remaining_tokens)
            least = self._keep(oldest, least)
            if self._longest_chunk(first, shared) < shared:
                least = self._keep(oldest, least - shared)
            self.add_chunks(order[:at], shared, self._most_tokens - self._tokens - least)
            self._kept = None
        self.add_chunks(order[at:], least)

    def _keep(self, index: int, tokens: int) -> int:
        """Keep time for a chunk of so many tokens beside what is added; returns how many the prompt has of them."""
        tokens = min(tokens, self._candidates[index].remaining_tokens)
        self._kept = tokens, self._contexts[index]
        return tokens

    def _longest_chunk(self, index: int, room: int) -> int:
        def fits(tokens: int) -> bool:
            counts = replace(self._counts)
            counts.add_prefill(tokens, self._contexts[index])
            return self._fits(counts)

        return _most(room, fits)

    def _fits(self, counts: BatchCounts) -> bool:
        if self._times is None:
            return True
        if self._kept is not None:
            counts = replace(counts)
            counts.add_prefill(*self._kept)
        return self._times.step_s(counts) <= self._most_s


def _guessed_tokens(budget: StepBudget, most_s: float) -> int:
    """Tokens that a step of `most_s` seconds may hold while nothing predicts what it takes."""
    if budget.tokens * budget.token_s <= most_s:
        return budget.tokens
    return int(most_s / budget.token_s)


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The greatest number up to `limit` that fits, by bisection: what is more never fits where less does not."""
    if limit < 1 or fits(limit):
        return max(0, limit)
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
