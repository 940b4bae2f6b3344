"""Prompts longer than any instance's slots, in a whole simulated cluster: every text is exact, whoever is lost."""

from random import Random
from typing import Any

import pytest

from dunlin.messages.dispatch import Place
from dunlin.messages.types import FinishReason, GroupKind, GroupRole
from dunlin.telemetry.decisions import DecisionRecord
from dunlin.telemetry.explain import explain
from simulator.cluster.recording_client import RecordingClient
from simulator.cluster.scripted import ScriptedCluster

SLOTS = 128


def cluster(step_s: float = 0.01, managers: int = 2, **settings: Any) -> ScriptedCluster:
    made = ScriptedCluster(
        instances=4,
        dispatchers=2,
        managers=managers,
        preset="elastic",
        engine={"slots": SLOTS, "has_agent": True, "step_s": step_s},
        instance={"scheduler.budget_tokens": 48, "scheduler.allocate_ahead_tokens": 4},
        **settings,
    )
    made.run_until_ready()
    return made


def ask(made: ScriptedCluster, slabs: float, seed: int = 0, max_tokens: int = 20) -> RecordingClient:
    draw = Random(seed)
    tokens = [draw.randrange(1000) for _ in range(int(slabs * SLOTS))]
    return made.submit(tokens, max_tokens, seed, at=f"dispatcher-{seed % 2}")


def parts(made: ScriptedCluster) -> dict[str, GroupRole]:
    """The instances in elastic groups, and what they do there."""
    orders = {name: core.group_order for name, core in made.instances.items()}
    return {name: one.part for name, one in orders.items() if one is not None and one.kind is GroupKind.ELASTIC}


def finished(made: ScriptedCluster) -> None:
    """Every text is whole (a client compares each token), and after a while no instance is in a group any more."""
    made.run_until_done()
    assert {client.finish for client in made.clients} == {FinishReason.LENGTH}
    made.world.run(for_s=10.0)
    assert parts(made) == {}
    assert made.all_free()
    made.check_conservation()


def test_prompts_of_three_slabs_and_chats_are_served_side_by_side() -> None:
    made = cluster()
    long = ask(made, 3.0)
    others = [ask(made, slabs, seed) for seed, slabs in ((1, 1.3), (2, 2.2), (3, 0.1), (4, 0.2), (5, 0.1))]
    made.run_until_done()
    assert (len(long.tokens), len(others[0].tokens)) == (20, 20)
    records = [
        DecisionRecord(at_s, sender, to, message)
        for at_s, sender, to, message in made.world.sent
        if getattr(message, "why", None) is not None
    ]
    story = "\n".join(explain(records, long.request))
    for words in ("asked manager-0 for a group for attempt 1, 384 tokens now", "placed attempt 1 in group"):
        assert words in story
    finished(made)


@pytest.mark.parametrize("part", [GroupRole.LEADER, GroupRole.MEMBER])
def test_what_is_lost_with_an_instance_of_the_group_is_computed_anew(part: GroupRole) -> None:
    made = cluster()
    long = ask(made, 2.5, max_tokens=40)
    made.world.run(lambda: len(long.tokens) > 5)
    victim = next(name for name, does in parts(made).items() if does is part)
    made.kill_instance(victim)
    made.start_instance(victim)
    finished(made)


@pytest.mark.parametrize("merge_after_s", [0.5, 60.0])
def test_what_a_group_is_too_small_for_goes_to_another_group_and_does_not_wait_for_its_end(
    merge_after_s: float,
) -> None:
    """Two groups of two, and a member of one dies for good: the three that are left hold both prompts together."""
    made = cluster(step_s=0.05, manager={"long_requests.merge_after_s": merge_after_s})
    long = ask(made, 1.05, max_tokens=12)
    made.world.run(lambda: len(long.tokens) > 0)
    first = set(parts(made))
    other = ask(made, 1.05, seed=1, max_tokens=70)
    made.world.run(lambda: len(other.tokens) > 0)
    assert len(parts(made)) == 4, "a group each"
    made.kill_instance(next(name for name in first if parts(made)[name] is GroupRole.MEMBER))
    made.world.run(lambda: FinishReason.LENGTH in (long.finish, other.finish))
    assert (long.finish is FinishReason.LENGTH) == (merge_after_s < 1.0)
    finished(made)


def test_a_new_manager_goes_on_with_the_groups_and_with_what_waits() -> None:
    made = cluster(step_s=0.1)
    running, waiting = ask(made, 3.0, max_tokens=120), ask(made, 3.0, seed=1)
    made.world.run(lambda: len(running.tokens) > 5)
    before = parts(made)
    made.kill(made.manager.address)
    made.world.run(lambda: made.manager.term is not None, for_s=20.0)
    assert (running.finish, parts(made)) == (FinishReason.RUNNING, before)
    assert not waiting.tokens, "the group of the one before it has no room for it"
    finished(made)
    attempts = {message.attempt for *_, message in made.world.sent if isinstance(message, Place)}
    assert attempts == {1}, "nothing was lost with the manager"


def test_without_a_manager_a_group_that_has_room_takes_what_waits() -> None:
    made = cluster(managers=1)
    first = ask(made, 3.0, max_tokens=60)
    made.world.run(lambda: len(first.tokens) > 0)
    made.kill(made.manager.address)
    late = ask(made, 2.0, seed=1)
    made.run_until_done()
    assert late.finish is FinishReason.LENGTH
    (place,) = [one for *_, one in made.world.sent if isinstance(one, Place) and one.key == late.request]
    assert place.why is not None
    assert place.why.policy == "roomiest_group"
    made.start("global_manager", "manager-0")
    finished(made)
