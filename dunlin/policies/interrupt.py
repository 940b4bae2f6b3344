"""Which rows leave a running step, and which parked ones come back: functions over the rows. Knows no engine.

A row that leaves frees the engine at its next safepoint for others. Suspended, it is parked where it stood and resumed
later, at the price of the memory that it keeps; discarded, what its step computed of it is computed again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dunlin.messages.types import RequestClass, Why


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


INTERRUPT_POLICIES: dict[str, InterruptPolicy] = {"never": never}
