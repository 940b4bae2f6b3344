"""The rows of sequences that leave: whoever fails to get away needs its row again."""

from dunlin.effects import Address, Joined
from dunlin.messages.dispatch import Ready
from dunlin.messages.engine import Step
from dunlin.messages.group import Reserved
from dunlin.messages.types import Why
from services.instance.sequence.states import SequenceState
from tests.services.instance.bench import ENGINE, D, Direct, done, make_place, of, only, ready_core

TARGET = Address("instance", "x", 9)


def leaving(max_running: int) -> Direct:
    """One sequence is about to go to another instance, and its dispatcher knows it; a second one came since."""
    direct = ready_core(scheduler__max_running=max_running)
    direct.give(D, make_place(1, tokens=10, max_tokens=20))
    sequence = direct.core.sequences.by_number(1)
    assert sequence is not None
    direct.give(TARGET, Joined())
    direct.core.migration.migrate_out.start(sequence, TARGET, Why("llumnix"), lambda migration, reason: None)
    direct.give(TARGET, Reserved(1, 6))
    for step in (1, 2):
        sent = direct.give(ENGINE, done(step, (1, 70 + step)))
    only(Ready, sent)
    direct.give(D, make_place(2, tokens=5))
    return direct


def test_one_that_is_placed_here_again_gets_no_row_beyond_those_that_may_run() -> None:
    direct = leaving(max_running=1)
    tokens = direct.core.sequences.by_key((D, 1)).tokens  # type: ignore[union-attr]
    direct.give(D, make_place(1, known=tokens, prompt_tokens=10, max_tokens=20, attempt=2))
    assert direct.core.sequences.running_count == 1
    assert all(len(step.sequence) <= 1 for step in of(Step, direct.give(ENGINE, done(3, (1, 73)))))


def test_a_row_is_free_once_it_has_left() -> None:
    direct = leaving(max_running=1)
    assert direct.core.sequences.waiting_count == 1
    direct.core.lifecycle.stop(direct.core.sequences.by_key((D, 1)))  # type: ignore[arg-type]
    direct.give(TARGET, Joined())
    assert [each.state for each in direct.core.sequences] == [SequenceState.RUNNING]


def test_others_start_beside_it_where_there_are_rows() -> None:
    assert leaving(max_running=2).core.sequences.running_count == 1
