"""Which rows leave a running step, and which parked ones come back: functions over the rows. Knows no engine.

A row that leaves frees the engine at its next safepoint for others. Suspended, it is parked where it stood and resumed
later, at the price of the memory that it keeps; discarded, what its step computed of it is computed again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dunlin.messages.types import Figure, RejectedOption, RequestClass, Why
from dunlin.policies.chance import chance

_SUSPENDED_PREFILL, _DISCARDED_PREFILL = 0.4, 0.1
_SUSPENDED_DECODE, _DISCARDED_DECODE = 0.08, 0.04
"""Shares of the rows of steps that leave, each time that a step was sent since they were looked at."""
_RESUMED, _FORGOTTEN = 0.2, 0.1
"""Shares of the parked rows that go on, or are forgotten, each time."""

SLACK_SHARE = 0.04
"""Share of the TTFT objective that an arriving request may wait for batch rows of steps that were sent before it."""
LOSS_SHARE = 0.1
"""The same share where less is left of the running step than would be lost of it, of a policy that takes queued steps
back."""
LEAST_GAIN_S = 0.005
"""Steps that end so soon are not interrupted: the answer to an interrupt takes about as long."""


@dataclass(frozen=True, slots=True)
class InterruptCandidate:
    """The oldest row of a sequence in the steps sent to the engine, or its parked row.

    `step` is the step that the row is in or left, `row_tokens` its positions, `remaining_tokens` the sequence's known
    tokens from the row's start on. `is_prefill`: it computes more than a next token; a step without such rows has no
    safepoint. `is_risen`: it is of the batch class, and was starved.
    """

    sequence: int
    step: int
    row_tokens: int
    remaining_tokens: int
    is_prefill: bool
    is_parked: bool = False
    request_class: RequestClass = RequestClass.INTERACTIVE
    may_preempt: bool = False
    is_risen: bool = False


@dataclass(frozen=True, slots=True)
class InterruptChoice:
    """Indices of candidates, and why. `suspend`: rows of steps that are to be parked. `discard`: rows of steps and
    parked ones that are to be forgotten. `resume`: parked ones that go on, as far as the engine's queue has room.
    `recall`: the number of a queued step that is taken back whole, and composed again with what waits; 0: none."""

    why: Why
    suspend: tuple[int, ...] = ()
    discard: tuple[int, ...] = ()
    resume: tuple[int, ...] = ()
    recall: int = 0


@dataclass(frozen=True, slots=True)
class StepSituation:
    """What the outstanding steps hold up. `last_step`: the number of the newest one; `remaining_s`: until all are done.

    `waiting_tokens` is what interactive requests have to compute of which no outstanding step has a row, `waiting_s`
    the longest that one of them has waited, `prefill_s` what their prefill will take, and `ttft_s` their objective.
    `elapsed_s`: since the running step began. `queued_step`: the one behind it, if it has rows of batch work (0: there
    is none), which takes `queued_s` of `remaining_s`. Without a profile all but `last_step` is unknown: nothing waits.
    """

    last_step: int
    waiting_tokens: int = 0
    waiting_s: float = 0.0
    remaining_s: float = 0.0
    prefill_s: float = 0.0
    ttft_s: float = float("inf")
    elapsed_s: float = 0.0
    queued_step: int = 0
    queued_s: float = 0.0


InterruptPolicy = Callable[[Sequence[InterruptCandidate], StepSituation], InterruptChoice | None]
"""Maps candidates and what they hold up to a choice; None: everything goes on as it is.

Asked after every event. Parked rows of an engine without other work are resumed without being asked about.
"""


def never(candidates: Sequence[InterruptCandidate], situation: StepSituation) -> InterruptChoice | None:
    """Every row stays to the end of its step."""
    return None


def restless(candidates: Sequence[InterruptCandidate], situation: StepSituation) -> InterruptChoice | None:
    """Some rows leave, some parked ones come back, at random: for campaigns and fault runs, which look for what breaks.

    The choice is a function of the numbers of sequences and steps, so that a run can be repeated.
    """
    suspend, discard, resume = list[int](), list[int](), list[int]()
    for index, row in enumerate(candidates):
        drawn = chance(row.sequence, row.step, situation.last_step, row.is_parked)
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


def on_arrival(candidates: Sequence[InterruptCandidate], situation: StepSituation) -> InterruptChoice | None:
    """All rows leave steps of batch work alone, when a request that waits would miss its objective (Algorithm 2 of
    ConServe, whose line 10 is printed inverted). Steps with an interactive row go on.
    """
    if any(row.request_class is not RequestClass.BATCH for row in candidates):
        return None
    return _make_way("on_arrival", candidates, situation, situation.ttft_s)


def on_arrival_rows(candidates: Sequence[InterruptCandidate], situation: StepSituation) -> InterruptChoice | None:
    """The rows of batch work leave any step, when a request would wait for more than `SLACK_SHARE` of its objective
    behind the outstanding steps: the objective belongs to the queue before it and to its own prefill. A starved row
    stays where it shares a step with interactive ones, as it does after each interrupt: it gets on between two of them.
    """
    slack_s = situation.waiting_s + situation.prefill_s + SLACK_SHARE * situation.ttft_s
    return _make_way("on_arrival_rows", candidates, situation, min(situation.ttft_s, slack_s))


def _make_way(
    policy: str, candidates: Sequence[InterruptCandidate], situation: StepSituation, most_s: float
) -> InterruptChoice | None:
    """Batch rows leave if the first token of what waits would come later than `most_s` after its arrival."""
    first_token_s = situation.waiting_s + situation.remaining_s + situation.prefill_s
    shared = {row.step for row in candidates if row.request_class is not RequestClass.BATCH}
    leaving = [
        index
        for index, row in enumerate(candidates)
        if row.request_class is RequestClass.BATCH and not row.is_parked and not (row.is_risen and row.step in shared)
    ]
    if not leaving or not situation.waiting_tokens or first_token_s <= most_s or situation.remaining_s < LEAST_GAIN_S:
        return None
    figures = (
        Figure("interactive_tokens", situation.waiting_tokens),
        Figure("remaining_s", situation.remaining_s),
        Figure("expected_ttft_s", first_token_s),
        Figure("ttft_objective_s", situation.ttft_s),
    )
    rejected = (RejectedOption("wait", f"its first token would come {first_token_s:.3g} s after it"),)
    why = Why(policy, f"{len(leaving)} batch rows leave", figures, rejected)
    return InterruptChoice(why, discard=tuple(leaving))


def recall(candidates: Sequence[InterruptCandidate], situation: StepSituation) -> InterruptChoice | None:
    """As `on_arrival`, and a queued step with batch rows is taken back for a request that waits, whenever it would be
    served: ConServe composes no step before the last one has ended, so that none stands between it and an arrival.
    """
    return _with_recall(on_arrival, candidates, situation)


def recall_rows(candidates: Sequence[InterruptCandidate], situation: StepSituation) -> InterruptChoice | None:
    """As `on_arrival_rows`, with `recall`; and the running step goes on where more of it would be lost than is left,
    and that is no more than `LOSS_SHARE` of the objective.
    """

    def interrupt(rows: Sequence[InterruptCandidate], running: StepSituation) -> InterruptChoice | None:
        is_spared = running.remaining_s <= min(running.elapsed_s, LOSS_SHARE * running.ttft_s)
        return None if is_spared else on_arrival_rows(rows, running)

    return _with_recall(interrupt, candidates, situation)


def _with_recall(
    policy: InterruptPolicy, candidates: Sequence[InterruptCandidate], situation: StepSituation
) -> InterruptChoice | None:
    """Take back the queued step if that is worth it, and what `policy` chooses of the others."""
    step = situation.queued_step
    running = replace(situation, remaining_s=situation.remaining_s - situation.queued_s)
    kept = [index for index, row in enumerate(candidates) if row.step != step]
    if not _is_recalled([candidates[index] for index in kept], running):
        return policy(candidates, situation)
    choice = policy([candidates[index] for index in kept], running)
    if choice is not None:
        return replace(choice, discard=tuple(kept[index] for index in choice.discard), recall=step)
    figures = (Figure("interactive_tokens", situation.waiting_tokens), Figure("queued_s", situation.queued_s))
    rejected = (RejectedOption("wait", "nothing of it is computed yet"),)
    return InterruptChoice(Why("recall", f"step {step} is composed again", figures, rejected), recall=step)


def _is_recalled(rows: Sequence[InterruptCandidate], running: StepSituation) -> bool:
    """Whether the queued step is taken back, with these rows in the running one: only where that answers an interrupt
    well before its end, or the engine would stand still until the next step is there.
    """
    runs = [row for row in rows if not row.is_parked]
    answers = any(row.is_prefill for row in runs) or all(row.request_class is RequestClass.BATCH for row in runs)
    is_long = min(running.remaining_s, running.queued_s) >= LEAST_GAIN_S
    return running.queued_step > 0 and running.waiting_tokens > 0 and is_long and bool(runs) and answers


INTERRUPT_POLICIES: dict[str, InterruptPolicy] = {
    "never": never,
    "restless": restless,
    "on_arrival": on_arrival,
    "on_arrival_rows": on_arrival_rows,
    "recall": recall,
    "recall_rows": recall_rows,
}

ARRIVAL_POLICIES: tuple[InterruptPolicy, ...] = (on_arrival, on_arrival_rows, recall, recall_rows)
"""Those that leave everything as it is while no interactive request waits: they need not be asked then."""
