"""Which sequence gives up its slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.messages.types import Figure, RejectedOption
from dunlin.policies.victim import MAX_ALTERNATIVES, VICTIM_POLICIES, VictimCandidate, youngest


def candidate(turn_rank: int, slots: int = 10) -> VictimCandidate:
    return VictimCandidate(f"s{turn_rank}", turn_rank, slots)


def test_the_youngest_goes_wherever_it_stands_and_however_little_it_holds() -> None:
    choice = youngest([candidate(4, 100), candidate(9, 1), candidate(7, 50)])
    assert choice.index == 1
    assert choice.why.chosen == "s9"
    assert choice.why.figures == (Figure("held_slots", 1),)


def test_the_reason_names_the_next_youngest_few() -> None:
    choice = youngest([candidate(rank) for rank in range(6)])
    assert [rejected.option for rejected in choice.why.rejected] == ["s4", "s3", "s2"]
    assert len(choice.why.rejected) == MAX_ALTERNATIVES
    assert choice.why.rejected[0] == RejectedOption("s4", "older")


def test_who_is_alone_is_chosen_without_alternatives() -> None:
    assert youngest([candidate(3)]).why.rejected == ()


@pytest.mark.parametrize("name", VICTIM_POLICIES)
@given(ranks=st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True))
def test_any_policy_chooses_one_that_is_there_and_says_who_decided(name: str, ranks: list[int]) -> None:
    candidates = [candidate(rank) for rank in ranks]
    choice = VICTIM_POLICIES[name](candidates)
    assert choice.why.policy == name
    assert choice.why.chosen == candidates[choice.index].name
    assert choice == VICTIM_POLICIES[name](candidates)
