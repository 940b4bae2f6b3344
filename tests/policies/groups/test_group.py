"""The grouping policies as functions."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.effects import Address
from dunlin.messages.types import GroupKind, GroupRole
from dunlin.policies.groups import group
from dunlin.policies.groups.group import SLACK, local_groups, prefill_decode
from dunlin.policies.groups.group_plan import GroupCandidate, GroupConstraints


def candidate(name: str, *, incarnation: int = 1, **overrides: Any) -> GroupCandidate:
    return GroupCandidate(**{"address": Address("instance", name, incarnation), "capacity_slots": 10, **overrides})


def numbers(*candidates: GroupCandidate) -> dict[str, int]:
    return {group.members[0].name: group.number for group in local_groups(candidates)}


def test_each_instance_is_alone_in_a_group_of_its_own() -> None:
    groups = local_groups([candidate("b"), candidate("a")])
    assert [(group.number, [member.name for member in group.members]) for group in groups] == [(1, ["a"]), (2, ["b"])]
    assert all((group.kind, group.roles) == (GroupKind.LOCAL, (GroupRole.LOCAL,)) for group in groups)


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


def test_no_instances_make_no_group() -> None:
    assert local_groups([]) == []


def test_the_reason_names_what_was_counted() -> None:
    (group,) = local_groups([candidate("a", capacity_slots=7)])
    assert (group.why.policy, group.why.chosen) == ("local_groups", "a alone in group 1")
    assert {figure.name: figure.value for figure in group.why.figures} == {"ready_instances": 1, "capacity_slots": 7}


# --- prefill and decode instances ---


def side(part: GroupRole, name: str, **overrides: Any) -> GroupCandidate:
    return candidate(name, role=part, **overrides)


def parts(*candidates: GroupCandidate, share: float = 0.5) -> str:
    """The first letter of each one's part, in the order of names."""
    groups = prefill_decode(candidates, GroupConstraints(share))
    assert all(group.kind is GroupKind.LOCAL and len(group.members) == 1 for group in groups)
    return "".join(group.roles[0].name[0] for group in sorted(groups, key=lambda group: group.members))


@pytest.mark.parametrize(
    ("instances", "share", "expected"),
    [
        (1, 0.5, "L"),
        (2, 0.5, "PD"),
        (2, 0.01, "PD"),
        (2, 0.99, "PD"),
        (3, 0.5, "PPD"),
        (4, 0.5, "PPDD"),
        (4, 0.25, "PDDD"),
        (5, 0.7, "PPPPD"),
        (8, 0.25, "PPDDDDDD"),
    ],
)
def test_newcomers_are_split_as_the_share_says(instances: int, share: float, expected: str) -> None:
    assert parts(*map(candidate, "abcdefgh"[:instances]), share=share) == expected


def test_the_split_is_the_same_when_instances_come_one_by_one() -> None:
    known: list[GroupCandidate] = []
    for name in "abcdef":
        groups = prefill_decode([*known, candidate(name)], GroupConstraints(0.5))
        known = [candidate(group.members[0].name, role=group.roles[0], group=group.number) for group in groups]
    assert [one.role.name[0] for one in known] == ["P", "D", "P", "D", "P", "D"]


def test_a_newcomer_joins_the_side_that_is_short() -> None:
    assert (
        parts(side(GroupRole.DECODE, "a"), side(GroupRole.DECODE, "b"), side(GroupRole.PREFILL, "c"), candidate("d"))
        == "DDPP"
    )


def test_who_has_a_side_keeps_it_while_the_split_is_nearly_right() -> None:
    two_to_one = (side(GroupRole.PREFILL, "a"), side(GroupRole.PREFILL, "b"), side(GroupRole.DECODE, "c"))
    assert parts(*two_to_one) == "PPD"
    assert parts(*two_to_one, share=0.34) == "PPD"


def test_a_split_that_is_far_off_is_mended_by_those_with_the_fewest_requests() -> None:
    four = [
        side(GroupRole.PREFILL, name, requests=requests) for name, requests in zip("abcd", (5, 1, 3, 2), strict=True)
    ]
    assert parts(*four, side(GroupRole.DECODE, "e")) == "PPPPD"
    assert parts(*four, side(GroupRole.DECODE, "e"), share=0.4) == "PDPPD"
    assert (
        parts(*(replace(one, role=GroupRole.DECODE) for one in four), side(GroupRole.PREFILL, "e"), share=0.7)
        == "DPDPP"
    )


@pytest.mark.parametrize(
    ("empty", "other"), [(GroupRole.DECODE, GroupRole.PREFILL), (GroupRole.PREFILL, GroupRole.DECODE)]
)
def test_an_empty_side_is_filled_at_once(empty: GroupRole, other: GroupRole) -> None:
    lost = side(empty, "a", serves=False)
    groups = prefill_decode([lost, side(other, "b", requests=2), side(other, "c", requests=1)], GroupConstraints(0.5))
    assert [group.roles[0] for group in groups] == [empty, other, empty]


def test_one_that_serves_alone_does_all_and_the_others_keep_their_sides() -> None:
    groups = prefill_decode([side(GroupRole.PREFILL, "a"), side(GroupRole.DECODE, "b", serves=False)])
    assert [group.roles[0] for group in groups] == [GroupRole.LOCAL, GroupRole.DECODE]
    groups = prefill_decode([side(GroupRole.LOCAL, "a"), side(GroupRole.DECODE, "b")])
    assert [group.roles[0] for group in groups] == [GroupRole.PREFILL, GroupRole.DECODE]


def test_the_reason_of_a_side_counts_both() -> None:
    group = prefill_decode([candidate("a"), candidate("b"), candidate("c")])[2]
    assert (group.why.policy, group.why.chosen) == ("prefill_decode", "c does decode in group 3")
    assert {figure.name: figure.value for figure in group.why.figures} == {
        "serving_instances": 3,
        "prefill_instances": 2,
        "decode_instances": 1,
        "requests": 0,
    }
    assert [(one.option, one.reason) for one in group.why.rejected] == [("prefill", "2 instances do")]


members = st.lists(
    st.builds(
        lambda part, serves, requests, group: (part, serves, requests, group),
        st.sampled_from([GroupRole.LOCAL, GroupRole.PREFILL, GroupRole.DECODE]),
        st.booleans(),
        st.integers(0, 3),
        st.integers(0, 4),
    ),
    max_size=10,
)


@given(members=members, share=st.floats(0.01, 0.99))
def test_any_split_has_both_sides_is_nearly_right_and_settles(members: list[Any], share: float) -> None:
    given = [
        candidate(str(number), role=part, serves=serves, requests=requests, group=group)
        for number, (part, serves, requests, group) in enumerate(members)
    ]
    groups = prefill_decode(given, GroupConstraints(share))
    assert len({group.number for group in groups}) == len(given)
    decided = {group.members[0]: group for group in groups}
    assert all(decided[one.address].roles[0] is one.role for one in given if not one.serves)
    sides = [decided[one.address].roles[0] for one in given if one.serves]
    if len(sides) >= 2:
        wanted = min(len(sides) - 1, max(1, int(share * len(sides) + 0.5)))
        assert 0 < sides.count(GroupRole.PREFILL) < len(sides)
        assert sides.count(GroupRole.PREFILL) + sides.count(GroupRole.DECODE) == len(sides)
        assert abs(sides.count(GroupRole.PREFILL) - wanted) <= SLACK
    again = [
        replace(one, role=decided[one.address].roles[0], group=decided[one.address].number, requests=0) for one in given
    ]
    second = prefill_decode(again, GroupConstraints(share))
    assert {group.members[0]: (group.number, group.roles) for group in second} == {
        address: (group.number, group.roles) for address, group in decided.items()
    }


def by_name(*candidates: GroupCandidate, prefill: tuple[str, ...] = ("c", "d")) -> str:
    groups = prefill_decode(candidates, GroupConstraints(prefill_names=prefill))
    return "".join(group.roles[0].name[0] for group in sorted(groups, key=lambda group: group.members))


def test_named_instances_compute_prompts_whatever_they_did_before() -> None:
    assert by_name(*(candidate(name) for name in "abcd")) == "DDPP"
    assert by_name(side(GroupRole.PREFILL, "a"), side(GroupRole.DECODE, "b"), side(GroupRole.DECODE, "c")) == "DDP"


def test_a_side_whose_named_instances_are_all_lost_is_taken_by_the_least_busy_until_they_are_back() -> None:
    assert by_name(candidate("a", requests=2), candidate("b", requests=1)) == "DP"
    assert by_name(candidate("c"), candidate("d", requests=3)) == "DP"
    assert by_name(candidate("c")) == "L"


class Watched(list[GroupRole]):
    """Counts how often it is looked through."""

    counted = 0

    def count(self, value: Any) -> int:
        Watched.counted += 1
        return super().count(value)


def test_a_large_split_is_counted_once_not_for_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands come at once, or change sides: the time must not grow with the square of the fleet."""
    monkeypatch.setattr(group, "_counted", lambda parts, counted=group._counted: counted(Watched(parts)))
    fleet = [candidate(f"{n:03}") for n in range(300)]
    split = prefill_decode(fleet)
    assert [one.roles[0] for one in split].count(GroupRole.PREFILL) == 150
    prefilling = [replace(one, role=GroupRole.PREFILL) for one in fleet]
    assert [one.roles[0] for one in prefill_decode(prefilling)].count(GroupRole.DECODE) == 150 - SLACK
    assert Watched.counted <= 8
