"""Which sequence gives up its slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.messages.types import MAX_ALTERNATIVES, Figure, RejectedOption, RequestClass
from dunlin.policies.victim import (
    VICTIM_POLICIES,
    SlotNeed,
    VictimCandidate,
    VictimChoice,
    VictimPolicy,
    batch_first,
    youngest,
)

GROWS = SlotNeed()
STARTS = SlotNeed(may_preempt=True, is_waiting=True)


def candidate(turn_rank: int, slots: int = 10) -> VictimCandidate:
    return VictimCandidate(f"s{turn_rank}", turn_rank, slots)


def batch(turn_rank: int, is_checkpointed: bool = False) -> VictimCandidate:
    return VictimCandidate(f"b{turn_rank}", turn_rank, 10, RequestClass.BATCH, is_checkpointed=is_checkpointed)


def chosen(policy: VictimPolicy, candidates: list[VictimCandidate], need: SlotNeed) -> VictimChoice:
    choice = policy(candidates, need)
    assert choice is not None
    return choice


def test_the_youngest_goes_wherever_it_stands_and_however_little_it_holds() -> None:
    choice = chosen(youngest, [candidate(4, 100), candidate(9, 1), candidate(7, 50)], GROWS)
    assert choice.index == 1
    assert choice.why.chosen == "s9"
    assert choice.why.figures == (Figure("held_slots", 1),)


def test_the_reason_names_the_next_youngest_few() -> None:
    choice = chosen(youngest, [candidate(rank) for rank in range(6)], GROWS)
    assert [rejected.option for rejected in choice.why.rejected] == ["s4", "s3", "s2"]
    assert len(choice.why.rejected) == MAX_ALTERNATIVES
    assert choice.why.rejected[0] == RejectedOption("s4", "older")


def test_who_is_alone_is_chosen_without_alternatives() -> None:
    assert chosen(youngest, [candidate(3)], GROWS).why.rejected == ()


@pytest.mark.parametrize("name", VICTIM_POLICIES)
@given(ranks=st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True))
def test_any_policy_chooses_one_that_is_there_and_says_who_decided(name: str, ranks: list[int]) -> None:
    candidates = [candidate(rank) for rank in ranks]
    choice = chosen(VICTIM_POLICIES[name], candidates, GROWS)
    assert choice.why.policy in VICTIM_POLICIES
    assert choice.why.chosen == candidates[choice.index].name
    assert choice == VICTIM_POLICIES[name](candidates, GROWS)


def test_batch_work_goes_first_checkpointed_work_before_it_and_the_youngest_of_these() -> None:
    candidates = [candidate(9), batch(1, True), batch(2, True), batch(8)]
    for need in (GROWS, STARTS):
        assert chosen(batch_first, candidates, need).why.chosen == "b2"
    assert chosen(batch_first, [candidate(9), batch(1), batch(8)], STARTS).why.chosen == "b8"


def test_nothing_is_preempted_for_one_that_waits_but_batch_work_for_an_interactive_one() -> None:
    assert youngest([candidate(3), batch(4)], STARTS) is None
    assert batch_first([candidate(3)], STARTS) is None
    assert batch_first([batch(3)], SlotNeed(RequestClass.BATCH, is_waiting=True)) is None


def test_without_batch_work_the_youngest_goes() -> None:
    assert chosen(batch_first, [candidate(3), candidate(5)], GROWS).why.policy == "youngest"
