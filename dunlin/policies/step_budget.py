"""What a batch policy is asked with: the sequences that could have a row, and what the step may hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dunlin.cost.models import StepTimes
from dunlin.messages.types import RequestClass


@dataclass(frozen=True, slots=True)
class BatchCandidate:
    """A sequence that could have a row. `remaining_tokens`: the most it could compute next; 1 for a decode row.

    `may_preempt`: work of the batch class may be preempted for it. `is_risen`: it is of the batch class and was
    starved, and is to have a part in every step. `due_in_s`: when an interactive one's first token should come, in
    seconds since the outstanding steps are done; infinite where it has come.
    """

    remaining_tokens: int
    is_decode: bool
    request_class: RequestClass = RequestClass.INTERACTIVE
    may_preempt: bool = False
    is_risen: bool = False
    due_in_s: float = float("inf")


@dataclass(slots=True)
class StepBudget:
    """What a step may hold. `tokens`: the setting `budget_tokens`; `contexts`: the tokens before each candidate's row.

    For policies that aim at objectives: `tpot_s` and `ttft_s` are the objectives of interactive requests, `times`
    predicts a step's duration (None: nothing does yet), and `most_tokens` bounds a step whatever is predicted.
    `late_tokens`: so many tokens of interactive rows may come later than `tpot_s` now, a 99th percentile. `slots`: of
    the KV cache, of which `taken_slots` are held by sequences (0: unknown).
    `token_s`: seconds per token of the last step that held a chunk, 0 before there was one; a guess where `times` is
    None.
    """

    tokens: int
    contexts: Sequence[int] = ()
    most_tokens: int = 2048
    tpot_s: float = float("inf")
    ttft_s: float = float("inf")
    times: StepTimes | None = None
    token_s: float = 0.0
    late_tokens: float = 0.0
    slots: int = 0
    taken_slots: int = 0


BatchPolicy = Callable[[Sequence[BatchCandidate], StepBudget], list[int]]
"""(candidates, oldest first; what the step may hold) to tokens per candidate, 0 for no row in this step.

It is not asked again while all candidates have decode rows and none joins or leaves: the next step holds the same rows.
"""
