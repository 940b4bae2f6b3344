"""Which rows leave a running step, and which parked ones come back: functions over the rows. Knows no engine.

A row that leaves frees the engine at its next safepoint for others. Suspended, it is parked where it stood and resumed
later, at the price of the memory that it keeps; discarded, what its step computed of it is computed again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dunlin.messages.types import Figure, RejectedOption, RequestClass, Why
from dunlin.policies.chance import chance

_SUSPENDED_PREFILL, _DISCARDED_PREFILL = 0.4, 0.1
_SUSPENDED_DECODE, _DISCARDED_DECODE = 0.08, 0.04
"""Shares of the rows of steps that leave, each time that a step was sent since they were looked at."""
_RESUMED, _FORGOTTEN = 0.2, 0.1
"""Shares of the parked rows that go on, or are forgotten, each time."""


@dataclass(frozen=True, slots=True)
class InterruptCandidate:
    """The oldest row of a sequence in the steps sent to the engine, or its parked row.

    `step` is the step that the row is in or left, `row_tokens` its positions, `remaining_tokens` the sequence's known
    tokens from the row's start on. `is_prefill`: it computes more than a next token; a step without such rows has no
    safepoint.
    """

    sequence: int
    step: int
    row_tokens: int
    remaining_tokens: int
    is_prefill: bool
    is_parked: bool = False
    request_class: RequestClass = RequestClass.INTERACTIVE
    may_preempt: bool = False


@dataclass(frozen=True, slots=True)
class InterruptChoice:
    """Indices of candidates, and why. `suspend`: rows of steps that are to be parked. `discard`: rows of steps and
    parked ones that are to be forgotten. `resume`: parked ones that go on, as far as the engine's queue has room."""

    why: Why
    suspend: tuple[int, ...] = ()
    discard: tuple[int, ...] = ()
    resume: tuple[int, ...] = ()


InterruptPolicy = Callable[[Sequence[InterruptCandidate], int], InterruptChoice | None]
"""Maps (candidates, number of the newest step) to a choice; None: everything goes on as it is.

Asked after every event. Parked rows of an engine without other work are resumed without being asked about.
"""


def never(candidates: Sequence[InterruptCandidate], last_step: int) -> InterruptChoice | None:
    """Every row stays to the end of its step."""
    return None


def restless(candidates: Sequence[InterruptCandidate], last_step: int) -> InterruptChoice | None:
    """Some rows leave, some parked ones come back, at random: for campaigns and fault runs, which look for what breaks.

    The choice is a function of the numbers of sequences and steps, so that a run can be repeated.
    """
    suspend, discard, resume = list[int](), list[int](), list[int]()
    for index, row in enumerate(candidates):
        drawn = chance(row.sequence, row.step, last_step, row.is_parked)
        chosen, share, discarded = suspend, _SUSPENDED_DECODE, _DISCARDED_DECODE
        if row.is_parked:
            chosen, share, discarded = resume, _RESUMED, _FORGOTTEN
        elif row.is_prefill:
            share, discarded = _SUSPENDED_PREFILL, _DISCARDED_PREFILL
        if drawn < share:
            chosen.append(index)
        elif drawn < share + discarded:
            discard.append(index)
    if not (suspend or discard or resume):
        return None
    counts = (("suspend", suspend), ("discard", discard), ("resume", resume))
    figures = tuple(Figure(name, len(rows)) for name, rows in counts)
    why = Why("restless", "at random", figures, (RejectedOption("never", "campaigns want rows to leave"),))
    return InterruptChoice(why, tuple(suspend), tuple(discard), tuple(resume))


INTERRUPT_POLICIES: dict[str, InterruptPolicy] = {"never": never, "restless": restless}
