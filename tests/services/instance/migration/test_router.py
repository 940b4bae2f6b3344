"""The router of migrations: what a target may take, which attempt is a recall, and what a report says."""

from collections.abc import Callable
from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined
from dunlin.messages.dispatch import Accepted, Ready
from dunlin.messages.group import Release, Reserve, Reserved, ReserveRefused
from dunlin.messages.plan import Drain, Evacuate, Undrain
from dunlin.messages.types import GroupRole
from services.instance.sequence.states import SequenceState
from tests.services.instance.bench import ENGINE, MANAGER, D, Direct, done, make_order, make_place, of, only, ready_core

SOURCE = Address("instance", "source", 7)
TARGET = Address("instance", "target", 8)


def ask(number: int = 1, tokens: int = 20) -> Reserve:
    names: dict[str, Any] = {"weights_digest": "fake", "kv_dtype": "float32", "longest": 40}
    return Reserve(number, tokens, 0, 2, 1, 1, None, f"{D}/{number}", D, number, 1, **names)


def refusal(direct: Direct, number: int = 1, tokens: int = 20) -> str:
    """The reason why it takes no sequence of so many tokens; empty if it does."""
    answers = of(ReserveRefused, direct.give(SOURCE, ask(number, tokens)))
    return answers[0].why.rejected[0].reason if answers else ""


def decode_core(**config: Any) -> Direct:
    direct = ready_core({"slots": 64}, **config)
    direct.give(MANAGER, make_order(plan_version=2, part=GroupRole.DECODE))
    return direct


def test_a_target_needs_an_order_and_must_not_drain() -> None:
    direct = ready_core()
    assert refusal(direct) == ""
    direct.give(MANAGER, Drain(1, 1))
    assert refusal(direct, 2) == "it is being emptied"
    direct.give(MANAGER, Undrain(1, 2))
    assert refusal(direct, 3) == ""
    assert refusal(Direct()) != ""


@pytest.mark.parametrize("core", [ready_core, decode_core])
def test_it_takes_no_more_than_may_run(core: Callable[..., Direct]) -> None:
    direct = core(scheduler__max_running=2)
    direct.give(D, make_place(9, tokens=4, max_tokens=4))
    assert refusal(direct, 1, tokens=4) == ""
    assert refusal(direct, 2, tokens=4) == "2 sequences are enough"


@pytest.mark.parametrize("comes", [True, False], ids=["it comes", "it stays where it was"])
def test_the_row_that_an_arrival_was_promised_is_not_given_to_one_that_waits(comes: bool) -> None:
    direct = ready_core(scheduler__max_running=2)
    direct.give(D, make_place(8, tokens=4, max_tokens=4))
    handle = only(Reserved, direct.give(SOURCE, ask(1, tokens=4))).handle
    direct.give(D, make_place(9, tokens=4, max_tokens=4))
    direct.give(ENGINE, done(1, (1, 5)))
    assert (direct.core.sequences.running_count, direct.core.report().waiting) == (1, 1)
    if comes:
        direct.give(D, make_place(1, tokens=4, max_tokens=4, attempt=2, handle=handle))
    else:
        direct.give(SOURCE, Release(handle))
        direct.give(ENGINE, done(2, (1, 6)))
    assert (direct.core.sequences.running_count, direct.core.report().waiting) == (2, int(comes))


def test_a_decode_instance_takes_nothing_while_others_wait() -> None:
    direct = decode_core()
    direct.give(D, make_place(8, tokens=60, max_tokens=4))
    direct.give(D, make_place(9, tokens=40, max_tokens=4))
    assert direct.core.report().waiting == 1
    assert refusal(direct, 1, tokens=1) == "others wait for slots"


def test_a_decode_instance_keeps_slots_for_those_that_run() -> None:
    local, decode = ready_core({"slots": 64}), decode_core()
    for direct in (local, decode):
        direct.give(D, make_place(9, tokens=4, max_tokens=4))
    free = local.core.slot_table.free
    assert refusal(local, 1, tokens=free) == ""
    assert refusal(decode, 1, tokens=free - 7) != "", "an eighth of the slots is the most that is kept"
    assert refusal(decode, 2, tokens=free - 8) == ""


def test_a_decode_instance_keeps_half_of_what_it_allocates_ahead() -> None:
    direct = decode_core(scheduler__allocate_ahead_tokens=8)
    direct.give(D, make_place(9, tokens=4, max_tokens=30))
    free = direct.core.slot_table.free
    assert refusal(direct, 1, tokens=free - 3) != ""
    assert refusal(direct, 2, tokens=free - 4) == ""


def leaving() -> Direct:
    """A core whose only sequence was handed over to the target."""
    direct = ready_core()
    direct.give(TARGET, Joined())
    direct.give(D, make_place(1, tokens=10, max_tokens=8))
    direct.give(MANAGER, Evacuate(1, 1, TARGET, 100))
    direct.give(ENGINE, done(1, (1, 5)))
    sends = direct.give(TARGET, Reserved(1, 6))
    for step in (2, 3):
        sends += direct.give(ENGINE, done(step, (1, 4 + step)))
    assert only(Ready, sends).handle == 6
    return direct


def test_an_attempt_with_the_same_tokens_recalls_a_sequence_that_leaves() -> None:
    direct = leaving()
    (sequence,) = direct.core.sequences.by_arrival()
    sends = direct.give(D, make_place(1, known=list(sequence.tokens), prompt_tokens=10, max_tokens=8, attempt=2))
    assert (only(Accepted, sends).attempt, only(Release, sends).handle) == (2, 6)
    assert sequence.state is SequenceState.RUNNING
    assert direct.core.sequences.by_arrival() == [sequence]


def test_an_attempt_with_other_tokens_replaces_it() -> None:
    direct = leaving()
    (sequence,) = direct.core.sequences.by_arrival()
    direct.give(D, make_place(1, known=list(sequence.tokens[:-1]), prompt_tokens=10, max_tokens=8, attempt=2))
    assert sequence not in direct.core.sequences.by_arrival()


def test_a_report_counts_migrations_in_both_directions() -> None:
    direct = leaving()
    report = direct.core.report()
    assert (report.leaving, report.arriving, report.migrations_total, report.draining) == (1, 0, 0, False)
    handle = only(Reserved, direct.give(SOURCE, ask(2))).handle
    assert direct.core.report().arriving == 1
    direct.give(TARGET, Gone("killed"))
    assert direct.core.report().leaving == 1, "its dispatcher knows the target and decides"
    direct.give(D, make_place(2, tokens=20, max_tokens=8, attempt=2, handle=handle))
    report = direct.core.report()
    assert (report.arriving, report.arrivals_total) == (0, 1)
