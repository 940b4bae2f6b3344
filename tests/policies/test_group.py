"""The grouping policies as functions."""

from dunlin.effects import Address
from dunlin.messages.types import GroupKind, Part
from dunlin.policies.group import Candidate, local_groups


def candidate(name: str, *, incarnation: int = 1, group: int = 0, capacity_slots: int = 10) -> Candidate:
    return Candidate(Address("instance", name, incarnation), capacity_slots, group)


def numbers(*candidates: Candidate) -> dict[str, int]:
    return {group.members[0].name: group.number for group in local_groups(candidates)}


def test_everybody_is_alone_in_a_group_of_their_own() -> None:
    groups = local_groups([candidate("b"), candidate("a")])
    assert [(group.number, [member.name for member in group.members]) for group in groups] == [(1, ["a"]), (2, ["b"])]
    assert all((group.kind, group.parts) == (GroupKind.LOCAL, (Part.LOCAL,)) for group in groups)


def test_numbers_do_not_depend_on_the_order_of_candidates() -> None:
    assert numbers(candidate("a"), candidate("b")) == numbers(candidate("b"), candidate("a"))


def test_a_number_once_held_is_kept_and_newcomers_fill_the_gaps() -> None:
    assert numbers(candidate("a"), candidate("b", group=1), candidate("c"), candidate("d", group=3)) == {
        "a": 2,
        "b": 1,
        "c": 4,
        "d": 3,
    }


def test_a_number_held_twice_stays_with_the_first() -> None:
    assert numbers(candidate("a", group=2), candidate("b", group=2)) == {"a": 2, "b": 1}


def test_nobody_makes_no_group() -> None:
    assert local_groups([]) == []


def test_the_reason_names_what_was_counted() -> None:
    (group,) = local_groups([candidate("a", capacity_slots=7)])
    assert (group.why.policy, group.why.chosen) == ("local_groups", "a alone in group 1")
    assert {figure.name: figure.value for figure in group.why.figures} == {"ready_instances": 1, "capacity_slots": 7}
