"""Blame: which sequences are suspects, run alone, are cleared, or are poison."""

from typing import Any

from dunlin.effects import Address
from services.instance.sequence import crash_suspects
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from tests.services.instance.bench import make_place

D = Address("dispatcher", "d", 1)


def sequence(number: int = 1, suspicion: int = 0, **fields: Any) -> Sequence:
    made = Sequence(number, number, D, make_place(number, tokens=10, suspicion=suspicion), SequenceState.RUNNING)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_who_was_in_a_step_with_others_is_suspect_and_no_more() -> None:
    accused = [sequence(1), sequence(2)]
    assert crash_suspects.blame_crash([(accused[0], 10), (accused[1], 4)]) == []
    assert [(one.suspicion, one.trial_stop) for one in accused] == [(1, 10), (1, 4)]


def test_two_engines_crashed_alone_are_poison() -> None:
    one = sequence()
    assert crash_suspects.blame_crash([(one, 10), (sequence(2), 10)]) == []
    assert crash_suspects.blame_crash([(one, 10)]) == []
    assert one.suspicion == 2
    assert not crash_suspects.is_poison(one)
    assert crash_suspects.blame_crash([(one, 10)]) == [one]
    figures = {figure.name: figure.value for figure in crash_suspects.poison_reason(one).figures}
    assert figures == {"crashes_alone": 2, "tokens": 10}
    assert crash_suspects.poison_reason(one).chosen == "it crashed 2 engines while it ran alone"


def test_the_first_crash_of_a_step_of_one_row_counts_as_alone() -> None:
    one = sequence()
    assert crash_suspects.blame_crash([(one, 10)]) == []
    assert crash_suspects.blame_crash([(one, 10)]) == [one]


def test_company_never_adds_to_the_blame() -> None:
    one, two = sequence(1), sequence(2)
    for _ in range(5):
        assert crash_suspects.blame_crash([(one, 10), (two, 10)]) == []
    assert one.suspicion == two.suspicion == 1


def test_what_ends_anyway_is_not_told_that_it_is_poison() -> None:
    one = sequence(suspicion=2, state=SequenceState.ENDING)
    assert crash_suspects.blame_crash([(one, 10)]) == []


def test_one_suspect_after_the_other_runs_alone() -> None:
    one, two, three = sequence(1), sequence(2, trial_stop=10), sequence(3, trial_stop=5)
    assert crash_suspects.runnable([one, two, three]) == [two]
    two.valid = 9
    crash_suspects.clear_if_past_crash(two)
    assert crash_suspects.runnable([one, two, three]) == [two]
    two.valid = 10
    crash_suspects.clear_if_past_crash(two)
    assert crash_suspects.runnable([one, two, three]) == [three]
    three.valid = 8
    crash_suspects.clear_if_past_crash(three)
    assert crash_suspects.runnable([one, two, three]) == [one, two, three]
    assert crash_suspects.runnable([]) == []


def test_who_is_cleared_of_a_crash_in_company_starts_afresh_and_a_crash_alone_stays_counted() -> None:
    cleared, marked, trusted = sequence(1), sequence(2), sequence(3, valid=10)
    crash_suspects.blame_crash([(cleared, 4), (marked, 4)])
    crash_suspects.blame_crash([(marked, 4)])
    for one in (cleared, marked, trusted):
        one.valid = 4
        crash_suspects.clear_if_past_crash(one)
    assert [(one.suspicion, one.trial_stop) for one in (cleared, marked, trusted)] == [(0, 0), (2, 0), (0, 0)]
    assert crash_suspects.blame_crash([(marked, 9)]) == [marked]


def test_a_suspicion_comes_along_with_the_dispatch() -> None:
    assert (sequence(suspicion=2).suspicion, sequence(suspicion=2).trial_stop) == (2, 10)
    assert sequence().trial_stop == 0
