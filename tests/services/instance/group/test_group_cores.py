"""An elastic group of whole instances: the leader's side, the members' and their engines, in virtual time."""

import pytest

from dunlin.messages.dispatch import Continued, Refusal, Refused, Returned
from dunlin.messages.engine import Open, Step
from dunlin.messages.plan import GroupOrder
from dunlin.messages.types import GroupKind, GroupRole
from tests.services.instance.bench import MANAGER
from tests.services.instance.group.group_bench import GROUP, GroupBench


def test_a_prompt_longer_than_one_slab_is_answered_exactly() -> None:
    bench = GroupBench(3, slots=64)
    attempt = bench.place(tokens=150, max_tokens=30)
    bench.run(3.0)
    assert attempt.is_accepted
    assert attempt.tokens == attempt.expected
    bench.run(2.0)
    bench.check_empty()


def test_a_group_is_filled_to_its_last_slot() -> None:
    bench = GroupBench(3, slots=64)
    attempt = bench.place(tokens=181, max_tokens=12)
    bench.run(2.0)
    assert attempt.tokens == attempt.expected
    assert not bench.dispatchers[bench.leader].of(Returned)


def test_a_prompt_of_one_step_goes_round_and_is_kept_at_one_member() -> None:
    bench = GroupBench(3, slots=128, groups__ring=True)
    attempts = [bench.place(request, 45, max_tokens=20) for request in (1, 2)]
    bench.run(3.0)
    assert all(attempt.tokens == attempt.expected for attempt in attempts)
    steps = [message for _, _, to, message in bench.world.sent if isinstance(message, Step) and to.role == "engine"]
    rings = [step for step in steps if step.group is GroupKind.RING]
    assert [len(rings), sum(len(step.keep.start) for step in rings if step.keep is not None)] == [6, 2]
    assert all(not step.peers for step in steps if step.group is not GroupKind.RING)
    bench.run(2.0)
    bench.check_empty()


def test_several_long_prompts_and_the_members_own_requests_run_at_once() -> None:
    bench = GroupBench(3, slots=128)
    own = [bench.place(10 + at, 20, at=at, group=0, max_tokens=30) for at in range(3)]
    long = [bench.place(request, 90, max_tokens=20) for request in (1, 2, 3)]
    bench.run(6.0)
    assert all(attempt.tokens == attempt.expected for attempt in (*own, *long))
    bench.run(2.0)
    bench.check_empty()


def test_every_member_opens_a_long_request_with_its_adapter() -> None:
    adapters = ("aa", "bb")
    bench = GroupBench(3, slots=128, engine={"adapters": adapters})
    attempts = [bench.place(request, 90, adapter=each) for request, each in enumerate(("", *adapters), 1)]
    bench.run(6.0)
    assert all(attempt.tokens == attempt.expected for attempt in attempts)
    opened = [message for *_, message in bench.world.sent if isinstance(message, Open)]
    assert {(message.tokens[0], message.adapter) for message in opened} == {(1, ""), (2, "aa"), (3, "bb")}
    assert len(opened) > len(attempts)


def test_a_leader_without_the_adapter_refuses() -> None:
    bench = GroupBench(3, slots=128, engine={"adapters": ("aa",)})
    attempt = bench.place(1, 150, adapter="bb")
    bench.run(1.0)
    (refused,) = [message for message in attempt.heard if isinstance(message, Refused)]
    assert refused.reason is Refusal.NO_ADAPTER


@pytest.mark.parametrize("at", [0, 1])
def test_what_lay_at_a_member_whose_engine_dies_is_computed_again(at: int) -> None:
    bench = GroupBench(3, slots=64, engine={"restart_s": 0.3})
    attempt = bench.place(tokens=150, max_tokens=30)
    bench.run(0.25)
    had = len(attempt.tokens)
    bench.supervisors[at].crash()
    bench.run(4.0)
    dispatcher = bench.dispatchers[bench.leader]
    assert 0 < had < 30
    assert attempt.tokens == attempt.expected
    assert [each.request for each in dispatcher.of(Continued)] == [1]
    assert not dispatcher.of(Returned)
    bench.run(2.0)
    bench.check_empty()


def test_a_member_that_was_taken_away_and_given_again_joins_though_its_leader_did_not_hear_of_the_former() -> None:
    """The order between was lost with the leader's stream; a stream that opens anew brings the newest one alone."""
    bench = GroupBench(2, slots=64)
    leader, member = bench.addresses
    alone = GroupOrder(1, 2, GROUP + 1, GroupKind.LOCAL, GroupRole.LOCAL, (member,))
    bench.world.post(MANAGER, member, alone)
    bench.version = 2
    bench.order(leader, member)
    bench.run(0.1)
    attempt = bench.place(tokens=100, max_tokens=10)
    bench.run(2.0)
    assert attempt.tokens == attempt.expected
