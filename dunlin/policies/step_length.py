"""How much longer than the objective per token a step may take for interactive prompts. Knows no slot, no engine and no
queue.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from dunlin.cost.models import BatchCounts, StepTimes
from dunlin.policies.step_budget import BatchCandidate, StepBudget

CROWDED_TIMES = 4
"""How many times their objective prompts may take beside decode rows that keep theirs. Where they would take longer,
both have the same time in a step: else, with an objective that the engine cannot keep, or at a rate that leaves it no
time for prompts, first tokens would come later and later while few rows decode."""

LATE_TIMES = 3
"""How many times the objective per token a step may take for a first token that would be late."""

LEAST_ROWS_SHARE = 0.1
"""Share of a step of the objective which the rows that decode must take for a long one to pay: it computes no token of
a prompt faster, but has these rows once instead of three times."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """An interactive prompt: `tokens` behind `context` others. `is_hopeless`: it takes longer than the objective of its
    first token all by itself, so that no step has it in time, and it counts for none.
    """

    tokens: int
    context: int
    due_in_s: float
    is_hopeless: bool


def prompt_step_s(
    decodes: Sequence[int],
    prompts: Sequence[int],
    candidates: Sequence[BatchCandidate],
    budget: StepBudget,
    ttft_s: float,
) -> float:
    """Seconds of a step of rows that decode in which prompts may have more time than `tpot_s` leaves them; 0: they may
    not.

    Where prompts crowd (`CROWDED_TIMES`), both have the same time. Where a first token would be late, and as many
    tokens may be late as rows decode (`late_tokens`), the step takes `LATE_TIMES` the objective.
    """
    times = budget.times
    if times is None or not decodes:
        return 0.0
    context = sum(budget.contexts[index] + 1 for index in decodes)
    rows = BatchCounts(decode_rows=len(decodes), decode_context=context)
    decode_s = times.step_s(rows)
    may_crowd, may_be_late = 2 * decode_s > budget.tpot_s, budget.late_tokens >= len(decodes)
    if not (may_crowd or may_be_late):
        return 0.0
    waiting = [_prompt(candidates[index], budget.contexts[index], times, ttft_s) for index in prompts]
    left_share = max(0.0, 1.0 - decode_s / budget.tpot_s)
    longest_s = 2 * decode_s if may_crowd and _crowd(waiting, times, CROWDED_TIMES * ttft_s * left_share) else 0.0
    if may_be_late and _is_any_late(waiting, rows, times, budget.tpot_s):
        longest_s = max(longest_s, LATE_TIMES * budget.tpot_s)
    return longest_s


def _prompt(candidate: BatchCandidate, context: int, times: StepTimes, ttft_s: float) -> _Prompt:
    alone = BatchCounts()
    alone.add_prefill(candidate.remaining_tokens, context)
    return _Prompt(candidate.remaining_tokens, context, candidate.due_in_s, times.step_s(alone) > ttft_s)


def _crowd(waiting: Sequence[_Prompt], times: StepTimes, most_s: float) -> bool:
    """Whether the prompts take longer than that together."""
    counts = BatchCounts()
    for each in waiting:
        if not each.is_hopeless:
            counts.add_prefill(each.tokens, each.context)
    return counts.prefill_rows > 0 and times.step_s(counts) > most_s


def _is_any_late(waiting: Sequence[_Prompt], rows: BatchCounts, times: StepTimes, tpot_s: float) -> bool:
    """Whether a prompt is not computed when its first token is due: behind those with fewer tokens left, in whole steps
    of `tpot_s`, of which the rows that decode take `LEAST_ROWS_SHARE` at least. What they add is the same in each step.
    """
    alone, beside = BatchCounts(), replace(rows)
    for each in sorted(waiting, key=lambda prompt: prompt.tokens):
        alone.add_prefill(each.tokens, each.context)
        beside.add_prefill(each.tokens, each.context)
        if each.is_hopeless or each.due_in_s == float("inf"):
            continue
        prompts_s = times.step_s(alone)
        rows_s = times.step_s(beside) - prompts_s
        room_s = tpot_s - rows_s
        is_late = room_s <= 0 or ceil(prompts_s / room_s) * tpot_s > each.due_in_s
        if is_late and rows_s >= LEAST_ROWS_SHARE * tpot_s:
            return True
    return False
