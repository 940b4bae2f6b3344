"""Transfers behind a step: they go when it has answered, and fail with the row that left it."""

from dunlin.messages.engine import Interrupted, Resume, StepDone, Transfer, Unsupported
from dunlin.messages.types import Region, TransferKind, f32, i8, i32, i64
from services.instance.server_step_gate import Opened, StepGate


def behind(step: int, ticket: int, sequence: int = 1) -> Transfer:
    return Transfer(ticket, TransferKind.SLAB_TO_PEER, sequence, Region(0, 1, 0, 1), i64(), i64(), step=step)


def answer(step: int, left: tuple[int, ...] = (), dropped: tuple[int, ...] = ()) -> StepDone:
    return StepDone(step, i64(), i32(), f32(), i8(), dropped=i64(dropped), left=i64(left))


def gate() -> StepGate:
    """Steps 4 and 5 are not answered; transfers 1 and 2 are behind step 4, of sequences 1 and 2, 3 behind step 5."""
    made = StepGate()
    for step in (4, 5):
        made.on_command(Resume(step))
    assert [made.holds(behind(step, ticket, sequence)) for step, ticket, sequence in ((4, 1, 1), (4, 2, 2), (5, 3, 1))]
    return made


def tickets(opened: Opened) -> tuple[list[int], list[int]]:
    return [each.ticket for each in opened.ready], [each.ticket for each in opened.failed]


def test_a_transfer_goes_when_its_step_has_answered_and_not_before() -> None:
    made = gate()
    assert not made.holds(behind(0, 9))
    assert not made.holds(behind(3, 9))
    assert tickets(made.on_event(answer(3))) == ([], [])
    assert tickets(made.on_event(answer(4))) == ([1, 2], [])
    assert not made.holds(behind(4, 9)), "it has answered"
    assert tickets(made.on_event(answer(5))) == ([3], [])


def test_rows_that_left_fail_what_is_behind_them() -> None:
    made = gate()
    assert tickets(made.on_event(answer(4, left=(2,), dropped=(7,)))) == ([1], [2])
    left = Interrupted(i64([1, 1]), 8, i64([4, 5]))
    assert tickets(made.on_event(left)) == ([], [3])
    assert tickets(gate().on_event(answer(4, dropped=(1, 2)))) == ([], [1, 2])


def test_a_refused_step_fails_what_is_behind_it() -> None:
    made = gate()
    assert tickets(made.on_event(Unsupported("Step", step=4))) == ([], [1, 2])
    assert not made.holds(behind(4, 9))


def test_a_held_transfer_is_cancelled_once() -> None:
    made = gate()
    assert made.cancel(1) == behind(4, 1)
    assert made.cancel(1) is None
    assert tickets(made.on_event(answer(4))) == ([2], [])
