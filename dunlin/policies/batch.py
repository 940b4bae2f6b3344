"""Which sequences have how many tokens in a step: `BatchComposer.choose_rows` calls one of these functions with the
sequences that could run. Knows no slot, no engine and no queue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dunlin.messages.types import RequestClass


@dataclass(frozen=True, slots=True)
class BatchCandidate:
    """A sequence that could have a row. `remaining_tokens`: the most it could compute next; 1 for a decode row.

    `may_preempt`: work of the batch class may be preempted for it.
    """

    remaining_tokens: int
    is_decode: bool
    request_class: RequestClass = RequestClass.INTERACTIVE
    may_preempt: bool = False


BatchPolicy = Callable[[Sequence[BatchCandidate], int], list[int]]
"""(candidates, oldest first; budget in tokens) to tokens per candidate, 0 for no row in this step.

The result depends on nothing else, so it is not asked for again while the candidates stay the same: where all had
decode rows and none joined or left, the next step holds the same rows.
"""


def chunked_prefill(candidates: Sequence[BatchCandidate], budget_tokens: int) -> list[int]:
    """Every decode row first, then chunks of prompts, oldest first, until the budget is full.

    A step never holds a decode row up (Sarathi-Serve's rule). Where decode rows alone fill the budget, the oldest
    prompt still gets a token's room, so that it cannot starve.
    """
    taken = [1 if candidate.is_decode else 0 for candidate in candidates]
    decodes = taken.count(1)
    if decodes == len(taken):
        return taken
    left = max(budget_tokens - decodes, 1)
    for index, candidate in enumerate(candidates):
        if not candidate.is_decode and left > 0:
            taken[index] = min(candidate.remaining_tokens, left)
            left -= taken[index]
    return taken


def prefill_first(candidates: Sequence[BatchCandidate], budget_tokens: int) -> list[int]:
    """Whole prompts, oldest first, as many as the budget holds; decode rows only when no prompt waits.

    A prompt is never cut, so the first may be longer than the budget; none overtakes an older one that does not fit.
    Steps of prompts hold every decode row up (the scheduler of vLLM before it cut prompts into chunks).
    """
    prompts = [index for index, candidate in enumerate(candidates) if not candidate.is_decode]
    if not prompts:
        return [1] * len(candidates)
    left = budget_tokens
    taken = [0] * len(candidates)
    for index in prompts:
        tokens = candidates[index].remaining_tokens
        if tokens > left and index != prompts[0]:
            break
        taken[index] = tokens
        left -= tokens
    return taken


BATCH_POLICIES: dict[str, BatchPolicy] = {"chunked": chunked_prefill, "prefill_first": prefill_first}
