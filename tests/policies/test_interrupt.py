"""Policies for rows that leave their steps: the restless one does everything, and the same again."""

from dunlin.policies.interrupt import INTERRUPT_POLICIES, InterruptCandidate, StepSituation, never, restless


def rows(is_prefill: bool, is_parked: bool) -> list[InterruptCandidate]:
    return [InterruptCandidate(number, 7, 10, 20, is_prefill, is_parked) for number in range(1000)]


def shares(is_prefill: bool, is_parked: bool = False) -> tuple[float, float, float]:
    """Of 1,000 rows: those suspended, discarded and resumed."""
    choice = restless(rows(is_prefill, is_parked), StepSituation(9))
    assert choice is not None
    return len(choice.suspend) / 1000, len(choice.discard) / 1000, len(choice.resume) / 1000


def test_never_spares_all() -> None:
    assert never(rows(True, False), StepSituation(9)) is None


def test_restless_parks_prompts_often_next_tokens_seldom_and_brings_parked_rows_back() -> None:
    for found, wanted in (
        (shares(is_prefill=True), (0.4, 0.1, 0.0)),
        (shares(is_prefill=False), (0.08, 0.04, 0.0)),
        (shares(is_prefill=True, is_parked=True), (0.0, 0.1, 0.2)),
    ):
        assert all(abs(one - other) < 0.04 for one, other in zip(found, wanted, strict=True)), found


def test_restless_chooses_the_same_of_the_same_and_others_after_another_step() -> None:
    candidates = rows(True, False)
    assert restless(candidates, StepSituation(9)) == restless(candidates, StepSituation(9))
    assert restless(candidates, StepSituation(9)) != restless(candidates, StepSituation(10))
    assert restless([], StepSituation(9)) is None
    assert INTERRUPT_POLICIES["restless"] is restless
