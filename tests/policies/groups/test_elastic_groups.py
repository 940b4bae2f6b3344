"""Which instances form a group for a long request: as functions, and whatever the fleet."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dunlin.effects import Address
from dunlin.messages.types import GroupKind, GroupRole
from dunlin.policies.groups.elastic_groups import (
    WAYS,
    ElasticGroup,
    choose_group,
    choose_members,
    elastic,
    existing_groups,
    form_whole_pool,
    grow_group,
    longest_that_fits,
)
from dunlin.policies.groups.elastic_rules import ELASTIC_RULES, ElasticRules
from dunlin.policies.groups.group_plan import GroupCandidate, GroupConstraints
from dunlin.policies.groups.long_requests import KnownGroup, roomiest_group


def instance(name: str, free: int = 100, **overrides: Any) -> GroupCandidate:
    fields = {"capacity_slots": 100, "free_slots": free, "max_positions": 10_000, "node": "n"}
    return GroupCandidate(Address("instance", name, 1), **{**fields, **overrides})


def led(name: str, group: int, free: int = 100, **overrides: Any) -> GroupCandidate:
    return instance(name, free, kind=GroupKind.ELASTIC, group=group, role=GroupRole.LEADER, **overrides)


def member(name: str, group: int, free: int = 100, **overrides: Any) -> GroupCandidate:
    return instance(name, free, kind=GroupKind.ELASTIC, group=group, role=GroupRole.MEMBER, **overrides)


def names(members: Any) -> list[str]:
    return [getattr(one, "address", one).name for one in members]


def test_the_fewest_instances_are_taken_the_emptiest_first() -> None:
    fleet = [instance("a", 40), instance("b", 90), instance("c", 70), instance("d", 90, requests=3)]
    assert names(choose_members(90, fleet)) == ["b"]
    assert names(choose_members(91, fleet)) == ["b", "d"]
    assert names(choose_members(250, fleet)) == ["b", "d", "c"]
    assert names(choose_members(290, fleet)) == ["b", "d", "c", "a"]
    assert choose_members(291, fleet) == ()


def test_an_instance_of_which_nothing_is_known_has_no_slots_for_a_group() -> None:
    assert choose_members(1, [GroupCandidate(Address("instance", "a", 1))]) == ()


def test_a_new_group_s_reason_names_those_that_were_not_needed_the_emptiest_first() -> None:
    choice = choose_group(150, [instance("a", 40), instance("b", 90), instance("c", 70), instance("d", 60)], [])
    assert choice is not None
    assert choice.why.chosen == "form a group of b and c"
    assert [(one.option, one.reason) for one in choice.why.rejected] == [
        ("d", "60 slots free, not needed"),
        ("a", "40 slots free, not needed"),
    ]


def test_a_group_has_one_kind_of_weights_and_lies_on_one_node_unless_engines_reach_further() -> None:
    fleet = [instance("a", node="m"), instance("b"), instance("c", weights="other"), instance("d")]
    assert names(choose_members(200, fleet)) == ["b", "d"]
    assert choose_members(201, fleet) == ()
    assert names(choose_members(300, fleet, across_nodes=True)) == ["a", "b", "d"]
    assert longest_that_fits(fleet) == 200
    assert longest_that_fits(fleet, across_nodes=True) == 300
    assert longest_that_fits(fleet, [fleet[1].address]) == 100
    assert longest_that_fits([replace(one, max_positions=150) for one in fleet]) == 150
    assert longest_that_fits([]) == 0


def test_a_group_with_room_takes_another_request_before_a_new_one_is_formed() -> None:
    group = ElasticGroup(7, (led("a", 7, 60), member("b", 7, 50)), promised_slots=30)
    choice = choose_group(80, [instance("c")], [group])
    assert choice is not None
    assert (choice.number, names(choice.members)) == (7, ["a", "b"])
    assert choice.why.chosen == "join group 7"
    formed = choose_group(81, [instance("c")], [group])
    assert formed is not None
    assert (formed.number, names(formed.members)) == (0, ["c"]), "81 are not free beside what was promised"
    grown = choose_group(150, [instance("c")], [group])
    assert grown is not None
    assert (grown.number, names(grown.members)) == (7, ["a", "b", "c"])
    assert choose_group(181, [instance("c")], [group]) is None


def test_what_is_set_aside_already_is_not_counted_twice() -> None:
    members = (led("a", 7, 40, guest_slots=50), member("b", 7, 90, guest_slots=10))
    assert ElasticGroup(7, members, promised_slots=100).room_slots == 40 + 90 - 40
    assert ElasticGroup(7, members, promised_slots=20).room_slots == 130, "a request that ended leaves no debt"


def test_excluded_and_draining_instances_take_no_part() -> None:
    a, b = instance("a"), instance("b")
    group = ElasticGroup(7, (led("c", 7), member("d", 7, serves=False)))
    assert choose_group(50, [replace(a, serves=False)], [group]) is None
    choice = choose_group(50, [a, b], [], excluded=[a.address])
    assert choice is not None
    assert names(choice.members) == ["b"]
    whole = ElasticGroup(8, (led("c", 8),))
    assert choose_group(50, [], [whole], excluded=[whole.members[0].address]) is None


def test_a_group_with_one_excluded_member_takes_no_request() -> None:
    group = ElasticGroup(7, (led("a", 7), member("b", 7)))
    assert choose_group(50, [], [group]) is not None
    assert choose_group(50, [], [group], excluded=[group.members[1].address]) is None


def test_a_group_that_grows_says_by_whom_and_how_many_slots_that_adds() -> None:
    group = ElasticGroup(7, (led("a", 7, 60), member("b", 7, 50)), promised_slots=30)
    choice = choose_group(250, [instance("c", 90), instance("d", 80)], [group])
    assert choice is not None
    assert choice.why.chosen == "add c and d to group 7"
    assert {figure.name: figure.value for figure in choice.why.figures} == {
        "slots": 250,
        "group_free_slots": 80,
        "added_slots": 170,
        "group_members": 4,
    }


def test_a_leader_that_wishes_for_more_than_there_is_gets_what_there_is() -> None:
    group = ElasticGroup(7, (led("a", 7),))
    free = [instance("b", 30), instance("c", 20), instance("d", node="m"), instance("e", 0)]
    assert names(grow_group(group, 25, free)) == ["b"]
    assert grow_group(group, 60, free) == ()
    assert names(grow_group(group, 60, free, some=True)) == ["b", "c"]


def test_a_group_gets_no_instance_that_does_not_serve() -> None:
    group = ElasticGroup(7, (led("a", 7),))
    free = [instance("b", 30, serves=False), instance("c", 20)]
    assert grow_group(group, 25, free) == ()
    assert names(grow_group(group, 25, free, some=True)) == ["c"]


def test_a_group_ends_with_its_leader_and_goes_on_without_a_member() -> None:
    fleet = [led("a", 7), member("b", 7), member("c", 7, alive=False), led("d", 9, alive=False), member("e", 9)]
    groups = {group.number: names(group.members) for group in elastic(fleet, GroupConstraints(next_group=20))}
    assert groups == {7: ["a", "b"], 20: ["c"], 21: ["d"], 22: ["e"]}
    (kept,) = [group for group in elastic(fleet) if group.number == 7]
    assert (kept.kind, kept.roles) == (GroupKind.ELASTIC, (GroupRole.LEADER, GroupRole.MEMBER))
    assert kept.why.chosen == "a leads b in group 7"


def test_without_a_manager_the_group_with_most_room_is_taken() -> None:
    groups = [
        KnownGroup(number, Address("instance", str(number)), free) for number, free in ((1, 50), (2, 80), (3, 80))
    ]
    choice = roomiest_group(80, groups)
    assert choice is not None
    assert choice.group.number == 2
    assert roomiest_group(81, groups) is None
    assert roomiest_group(1, []) is None


fleets: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(
        dict,
        free=st.integers(0, 100),
        group=st.integers(0, 4),
        role=st.sampled_from([GroupRole.LOCAL, GroupRole.LEADER, GroupRole.MEMBER]),
        alive=st.booleans(),
        node=st.sampled_from(["n", "m"]),
    ),
    max_size=8,
)


def drawn(fields: list[dict[str, Any]]) -> list[GroupCandidate]:
    return [
        instance(
            f"i{index}",
            **one,
            serves=one["alive"],
            kind=GroupKind.LOCAL if one["role"] is GroupRole.LOCAL or not one["group"] else GroupKind.ELASTIC,
        )
        for index, one in enumerate(fields)
    ]


@given(fields=fleets, next_group=st.integers(1, 9))
def test_no_instance_is_in_two_groups_and_no_number_is_given_twice(
    fields: list[dict[str, Any]], next_group: int
) -> None:
    fleet = drawn(fields)
    groups = elastic(fleet, GroupConstraints(next_group=next_group))
    members = [address for group in groups for address in group.members]
    assert sorted(members) == sorted(one.address for one in fleet)
    assert len({group.number for group in groups}) == len(groups)
    new = [group.number for group in groups if group.number not in {one.group for one in fleet}]
    assert all(number >= next_group for number in new)
    for group in groups:
        assert len(group.roles) == len(group.members)
        assert group.kind is (GroupKind.ELASTIC if group.roles[0] is GroupRole.LEADER else GroupKind.LOCAL)
    placed = {address: group for group in groups for address in group.members}
    again = [
        replace(one, group=placed[one.address].number, kind=placed[one.address].kind, role=role_of(placed, one.address))
        for one in fleet
    ]
    assert {(group.number, group.members) for group in elastic(again)} == {(one.number, one.members) for one in groups}


def role_of(placed: dict[Address, Any], address: Address) -> GroupRole:
    group = placed[address]
    found: GroupRole = group.roles[group.members.index(address)]
    return found


@given(fields=fleets, slots=st.integers(1, 500), across=st.booleans())
def test_a_choice_has_room_for_all_and_nobody_elses_members(
    fields: list[dict[str, Any]], slots: int, across: bool
) -> None:
    fleet = drawn(fields)
    groups = existing_groups(fleet)
    grouped = {one.address for group in groups for one in group.members}
    free = [one for one in fleet if one.address not in grouped]
    choice = choose_group(slots, free, groups, (), across)
    by_address = {one.address: one for one in fleet}
    if choice is None:
        assert choose_members(slots, [one for one in free if one.serves], across) == ()
        return
    members = [by_address[address] for address in choice.members]
    assert len(set(choice.members)) == len(members)
    assert sum(one.free_slots for one in members) >= slots
    assert all(one.serves for one in members)
    assert across or len({one.node for one in members}) == 1 or choice.number
    own = {one.address for group in groups if group.number == choice.number for one in group.members}
    assert own <= set(choice.members)
    assert all(address not in grouped or address in own for address in choice.members)
    if not choice.number:
        assert sum(one.free_slots for one in members[:-1]) < slots, "one fewer would do"


def test_a_whole_pool_is_every_instance_of_a_node() -> None:
    fleet = [instance("a"), instance("b", 90), instance("c", 80), instance("d", node="other")]
    choice = choose_group(50, fleet, [], ways=[form_whole_pool])
    assert choice is not None
    assert names(choice.members) == ["a", "b", "c"]
    assert choose_group(301, fleet, [], ways=[form_whole_pool]) is None


def test_pairs_are_formed_while_there_are_two_instances_and_then_take_turns() -> None:
    """The replicas of a static degree: a request goes to a new one, then to the one with most room."""
    fleet = [instance("a"), instance("b", 90), instance("c", 95), instance("d", 70), instance("e", node="other")]
    ways = ELASTIC_RULES["pairs"].ways
    choice = choose_group(50, fleet, [], ways=ways)
    assert choice is not None
    assert names(choice.members) == ["a", "c"]
    groups = [ElasticGroup(1, (led("a", 1), member("c", 1)), 120), ElasticGroup(2, (led("b", 2), member("d", 2)), 60)]
    joined = choose_group(50, [fleet[-1]], groups, ways=ways)
    assert joined is not None
    assert joined.number == 2, "with one instance left no pair is formed"
    assert choose_group(201, fleet, [], ways=ways) is None, "two hold 195"


def test_without_scale_up_no_group_grows_for_a_request() -> None:
    group = ElasticGroup(7, (led("a", 7, 60), member("b", 7, 50)), promised_slots=30)
    assert choose_group(150, [instance("c")], [group]) is not None
    assert choose_group(150, [instance("c")], [group], ways=ELASTIC_RULES["loongserve_no_scale_up"].ways) is None


def test_groups_scale_up_unless_their_rules_say_otherwise() -> None:
    assert ElasticRules(WAYS).scales_up
    assert [name for name, rules in ELASTIC_RULES.items() if rules.scales_up] == ["elastic", "loongserve"]
