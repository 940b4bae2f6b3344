"""Which sequences have how many tokens in a step: `BatchComposer.choose_rows` calls one of these functions with the
sequences that could run. Knows no slot, no engine and no queue.
"""

from collections.abc import Sequence

from dunlin.policies.slo_batch import harvest, slo_aware
from dunlin.policies.step_budget import BatchCandidate, BatchPolicy, StepBudget


def chunked_prefill(candidates: Sequence[BatchCandidate], budget: StepBudget) -> list[int]:
    """Every decode row first, then chunks of prompts until the budget is full: interactive ones first, then those of
    the batch class, each oldest first.

    A step never holds a decode row up (Sarathi-Serve's rule). Where decode rows alone fill the budget, the oldest
    prompt still gets a token's room, so that it cannot starve.
    """
    taken = [1 if candidate.is_decode else 0 for candidate in candidates]
    decodes = taken.count(1)
    if decodes == len(taken):
        return taken
    left = max(budget.tokens - decodes, 1)
    prompts = [index for index, candidate in enumerate(candidates) if not candidate.is_decode]
    for index in sorted(prompts, key=lambda index: candidates[index].request_class):  # stable
        taken[index] = min(candidates[index].remaining_tokens, left)
        left -= taken[index]
    return taken


def prefill_first(candidates: Sequence[BatchCandidate], budget: StepBudget) -> list[int]:
    """Whole prompts, oldest first, as many as the budget holds; decode rows only when no prompt waits.

    A prompt is never cut, so the first may be longer than the budget; none overtakes an older one that does not fit.
    Steps of prompts hold every decode row up (the scheduler of vLLM before it cut prompts into chunks).
    """
    prompts = [index for index, candidate in enumerate(candidates) if not candidate.is_decode]
    if not prompts:
        return [1] * len(candidates)
    left = budget.tokens
    taken = [0] * len(candidates)
    for index in prompts:
        tokens = candidates[index].remaining_tokens
        if tokens > left and index != prompts[0]:
            break
        taken[index] = tokens
        left -= tokens
    return taken


BATCH_POLICIES: dict[str, BatchPolicy] = {
    "chunked": chunked_prefill,
    "prefill_first": prefill_first,
    "slo_aware": slo_aware,
    "harvest": harvest,
}
