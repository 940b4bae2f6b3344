"""Which cause a late token is counted by, and the reason that is recorded of it. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from dunlin.messages.lifecycle import MissCause
from dunlin.messages.types import Figure, RejectedOption, Why
from services.instance.sequence.wait_clock import StepTiming, WaitClock

WORDS: dict[MissCause, str] = {
    MissCause.QUEUE: "it waited at its dispatcher for an instance",
    MissCause.EARLIER_ATTEMPT: "attempts before took the time",
    MissCause.SLOTS: "it waited for slots",
    MissCause.STEP_BEFORE: "it waited for the steps before its own to end",
    MissCause.LEFT_OUT: "steps were composed without a row of it",
    MissCause.SLOW_STEP: "its steps took longer than predicted",
    MissCause.STEP: "its own steps take so long",
    MissCause.PREEMPTED: "it was preempted",
    MissCause.INTERRUPTED: "its row left a step",
    MissCause.ENGINE_LOST: "the engine was lost",
    MissCause.MIGRATION: "it was moved to another instance",
}
_PARTS: dict[MissCause, Figure] = {
    MissCause.QUEUE: Figure("queue_s", 0),
    MissCause.EARLIER_ATTEMPT: Figure("earlier_attempts_s", 0),
    MissCause.SLOTS: Figure("slots_s", 0),
    MissCause.STEP_BEFORE: Figure("step_before_s", 0),
    MissCause.LEFT_OUT: Figure("left_out_s", 0),
    MissCause.SLOW_STEP: Figure("slow_step_s", 0),
    MissCause.STEP: Figure("own_steps_s", 0),
    MissCause.PREEMPTED: Figure("preempted_s", 0),
    MissCause.INTERRUPTED: Figure("interrupted_s", 0),
    MissCause.ENGINE_LOST: Figure("engine_lost_s", 0),
    MissCause.MIGRATION: Figure("migration_s", 0),
}


def cause_of(parts: Mapping[MissCause, float], objective_s: float) -> MissCause:
    """The cause of a token that came later than its objective, whose time consists of these parts, in seconds.

    Its own steps, if they alone take longer than the objective: no other decision had helped. Else the longest of the
    other parts, of equal ones the first in the order of `MissCause`; its own steps, if there are no others.
    """
    others = [cause for cause in MissCause if cause is not MissCause.STEP and parts.get(cause, 0.0) > 0]
    if parts.get(MissCause.STEP, 0.0) > objective_s or not others:
        return MissCause.STEP
    return max(others, key=lambda cause: parts[cause])


def reason_of(cause: MissCause, is_first: bool, late_s: float, objective_s: float, clock: WaitClock) -> Why:
    """What was decided, predicted and what happened to a token that came after `late_s`."""
    figures = [Figure("late_s", late_s)]
    figures.append(Figure("ttft_objective_s", objective_s) if is_first else Figure("tpot_objective_s", objective_s))
    figures += [replace(_PARTS[each], value=clock.parts[each]) for each in MissCause if each in clock.parts]
    step = clock.step_before if cause is MissCause.STEP_BEFORE else clock.step
    if step is not None:
        figures += [Figure("step", step.step), Figure("step_took_s", step.took_s)]
        figures += [Figure("step_predicted_s", step.predicted_s)] if step.predicted_s else []
    rejected = RejectedOption("in time", _instead(cause, clock.parts[cause], step))
    return Why(WORDS[cause], "", tuple(figures), (rejected,))


def _instead(cause: MissCause, part_s: float, step: StepTiming | None) -> str:
    """What stood against it."""
    if step is not None and cause in (MissCause.STEP_BEFORE, MissCause.SLOW_STEP, MissCause.STEP):
        predicted = f"was to take {step.predicted_s:.3g} s and took" if step.predicted_s else "took"
        return f"step {step.step} {predicted} {step.took_s:.3g} s"
    return f"{part_s:.3g} s went by"
