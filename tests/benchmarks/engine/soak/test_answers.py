"""Every command has its one answer, and no answer is without its command."""

import pytest

from benchmarks.engine.soak.answers import UnansweredCommands
from benchmarks.engine.soak.engine_child import SoakError
from dunlin.effects import Address
from dunlin.messages.engine import Close, Interrupt, Interrupted, Met, Remap, RemapDone, StepDone, Unsupported
from dunlin.messages.types import RemapPhase, Verdict, f32, i8, i32, i64
from tests.engine.commands import make_step

PREPARE, ABORT = RemapPhase.PREPARE, RemapPhase.ABORT


def done(step: int) -> StepDone:
    return StepDone(step, i64(), i32(), f32(), i8())


def remap_done(phase: RemapPhase, layout: int = 1) -> RemapDone:
    return RemapDone(layout, phase, i32([0]), 10, 1)


def test_each_command_is_answered_once() -> None:
    asked = UnansweredCommands("e")
    step, interrupt = make_step(1, (1, 0, 4, 0)), Interrupt(Verdict.SUSPEND, ticket=1)
    for command in (step, interrupt, Close(1)):
        asked.asked(command)
    assert (len(asked), asked.steps) == (2, 1)
    assert asked.answered(Interrupted(ticket=1)) is interrupt
    assert asked.answered(done(1)) is step
    assert asked.answered(Met(Address("engine", "b"))) is None
    assert len(asked) == 0
    for again in (done(1), Interrupted(ticket=1), done(2)):
        with pytest.raises(SoakError, match="not open"):
            asked.answered(again)


def test_a_phase_may_be_refused_only_where_it_was_aborted() -> None:
    asked = UnansweredCommands("e")
    asked.asked(Remap(1, PREPARE, i32([0])))
    for wrong in (Unsupported("Remap", layout=1), Unsupported("Step", step=1), remap_done(PREPARE, 2)):
        with pytest.raises(SoakError):
            asked.answered(wrong)
    asked.asked(Remap(1, ABORT, i32([0])))
    assert asked.phases == 2
    assert asked.answered(Unsupported("Remap", layout=1)).phase is PREPARE
    assert asked.answered(remap_done(ABORT)).phase is ABORT
    assert asked.phases == 0
