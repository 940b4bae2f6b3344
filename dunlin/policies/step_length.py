"""How much longer than the objective per token a step may take for interactive prompts. Functions over the rows; know
no slot, no engine and no queue.
"""

from collections.abc import Sequence
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


def crowded_s(
    decodes: Sequence[int],
    prompts: Sequence[int],
    candidates: Sequence[BatchCandidate],
    budget: StepBudget,
    ttft_s: float,
) -> float:
    """Seconds of a step in which interactive prompts have as much time as the rows that decode, if they crowd; else 0.

    A prompt that takes longer than `ttft_s` all by itself does not count: no step has it in time.
    """
    times = budget.times
    if times is None:
        return 0.0
    decode_s = times.step_s(_decode_counts(decodes, budget))
    if 2 * decode_s <= budget.tpot_s:
        return 0.0
    waiting = BatchCounts()
    for index in prompts:
        chunk = candidates[index].remaining_tokens, budget.contexts[index]
        alone = BatchCounts()
        alone.add_prefill(*chunk)
        if times.step_s(alone) <= ttft_s:
            waiting.add_prefill(*chunk)
    left_share = max(0.0, 1.0 - decode_s / budget.tpot_s)
    is_crowded = waiting.prefill_rows > 0 and times.step_s(waiting) > CROWDED_TIMES * ttft_s * left_share
    return 2 * decode_s if is_crowded else 0.0


def late_s(
    decodes: Sequence[int],
    prompts: Sequence[int],
    candidates: Sequence[BatchCandidate],
    budget: StepBudget,
    ttft_s: float,
) -> float:
    """`LATE_TIMES` the objective per token, where as many tokens may be late as rows decode (`late_tokens`), and the
    first token of a prompt would be late in steps of `tpot_s`; else 0.

    A prompt is computed behind those with fewer tokens left, in whole steps which the decode rows lengthen, by
    `LEAST_ROWS_SHARE` at least. One that takes longer than `ttft_s` all by itself does not count.
    """
    times = budget.times
    if times is None or not decodes or budget.late_tokens < len(decodes):
        return 0.0
    alone, beside = BatchCounts(), _decode_counts(decodes, budget)
    for index in sorted(prompts, key=lambda index: candidates[index].remaining_tokens):
        chunk = candidates[index].remaining_tokens, budget.contexts[index]
        alone.add_prefill(*chunk)
        beside.add_prefill(*chunk)
        own = BatchCounts()
        own.add_prefill(*chunk)
        if times.step_s(own) <= ttft_s and _is_late(times, alone, beside, budget.tpot_s, candidates[index].due_in_s):
            return LATE_TIMES * budget.tpot_s
    return 0.0


def _is_late(times: StepTimes, alone: BatchCounts, beside: BatchCounts, tpot_s: float, due_in_s: float) -> bool:
    """Whether prompts that take so long `alone` are not computed within `due_in_s` in steps of `tpot_s`, and decode
    rows take a good part of each: what these add is always the same (`beside`).
    """
    prompts_s = times.step_s(alone)
    rows_s = times.step_s(beside) - prompts_s
    if rows_s < LEAST_ROWS_SHARE * tpot_s or due_in_s == float("inf"):
        return False
    room_s = tpot_s - rows_s
    return room_s <= 0 or ceil(prompts_s / room_s) * tpot_s > due_in_s


def _decode_counts(decodes: Sequence[int], budget: StepBudget) -> BatchCounts:
    context = sum(budget.contexts[index] + 1 for index in decodes)
    return BatchCounts(decode_rows=len(decodes), decode_context=context)
