"""A monitor that sleeps: that time counts against no instance, and what it publishes when it wakes."""

import pytest

from dunlin.effects import Gone, Joined
from dunlin.messages.membership import MembersReset
from tests.services.monitor.bench import (
    DISPATCHER,
    ETCD,
    INSTANCE,
    MANAGER,
    OTHER,
    RESTARTED,
    Bench,
    heartbeat,
    make_bench,
    member,
    report,
)


def test_a_monitor_that_slept_forgives_every_process() -> None:
    bench = make_bench()
    bench.give(INSTANCE, report(outstanding_steps=1, safepoints=5))
    bench.run(1.0)
    bench.sleep(20.0)
    assert bench.suspicions() == []
    bench.run(2.9)
    assert bench.suspicions() == []
    bench.run(0.35)
    assert [suspect for _, suspect in bench.suspicions()] == [True]


@pytest.mark.parametrize("late_s", [0.25, 0.5])
def test_a_look_that_is_no_later_than_the_limit_forgives_no_process(late_s: float) -> None:
    bench = make_bench(liveness__slept_s=0.5)
    bench.give(INSTANCE, report())
    bench.run(2.75)
    bench.sleep(0.25 + late_s)
    assert bench.suspicions() == [(3.0 + late_s, True)]


def test_sleeping_lifts_no_suspicion() -> None:
    bench = make_bench()
    bench.run(3.0)
    bench.sleep(20.0)
    bench.run(1.0)
    assert bench.suspicions() == [(3.0, True)]


def test_a_suspect_of_before_a_sleep_is_looked_at_again_before_it_is_published() -> None:
    bench = make_bench()
    bench.run(3.0)
    bench.now_s += 20.0
    bench.give(MANAGER, Joined())
    bench.sleep(0.0)
    assert bench.views(MANAGER) == []
    bench.give(INSTANCE, report())
    ((at_s, view),) = bench.views(MANAGER)
    assert (at_s, [one.suspect for one in view.members]) == (123.0, [False])
    assert bench.suspicions() == [(3.0, True), (23.0, False)]


def test_who_stays_silent_after_the_sleep_is_suspect_still() -> None:
    bench = make_bench(views__warm_up_s=2.0)
    bench.run(3.0)
    bench.sleep(20.0)
    bench.give(MANAGER, Joined())
    bench.run(1.99)
    assert bench.views(MANAGER) == []
    bench.run(0.01)
    ((at_s, view),) = bench.views(MANAGER)
    assert (at_s, [one.suspect for one in view.members]) == (125.0, [True])


def test_the_time_for_another_check_counts_from_the_first_message_after_the_sleep() -> None:
    bench = make_bench(views__warm_up_s=2.0)
    bench.run(3.0)
    bench.now_s += 20.0
    bench.give(MANAGER, Joined())
    bench.now_s += 0.5  # the late look is behind other messages in the queue
    bench.sleep(0.0)
    bench.run(2.0)
    assert [at_s for at_s, _ in bench.views(MANAGER)] == [125.0]


def test_a_report_from_before_it_was_well_again_is_not_the_last_word() -> None:
    stuck = {"outstanding_steps": 1, "safepoints": 5}
    bench = make_bench()
    bench.give(INSTANCE, report(**stuck))
    heartbeat(bench, 4.0, **stuck)
    bench.sleep(20.0)
    bench.give(MANAGER, Joined())
    bench.give(INSTANCE, report(**stuck))
    assert bench.views(MANAGER) == []
    bench.give(INSTANCE, report(outstanding_steps=1, safepoints=6))
    ((_, view),) = bench.views(MANAGER)
    assert [one.suspect for one in view.members] == [False]


def test_a_monitor_without_suspects_speaks_at_once_when_it_wakes() -> None:
    bench = make_bench()
    bench.give(INSTANCE, report())
    bench.sleep(20.0)
    bench.give(MANAGER, Joined())
    ((at_s, view),) = bench.views(MANAGER)
    assert (at_s, [one.suspect for one in view.members]) == (120.0, [False])


def test_an_instance_that_joined_just_before_the_sleep_is_not_waited_for() -> None:
    bench = make_bench()
    bench.run(1.0)
    bench.sleep(20.0)
    bench.give(MANAGER, Joined())
    assert [at_s for at_s, _ in bench.views(MANAGER)] == [121.0]


def test_who_did_not_report_in_the_first_warm_up_is_not_waited_for_after_a_sleep() -> None:
    bench = Bench(views__warm_up_s=2.0)
    bench.give(ETCD, MembersReset((member(INSTANCE),)))
    bench.run(2.5)
    bench.sleep(20.0)
    bench.give(MANAGER, Joined())
    assert [at_s for at_s, _ in bench.views(MANAGER)] == [122.5]


def test_a_suspect_that_ended_is_not_waited_for_after_a_sleep() -> None:
    bench = make_bench()
    bench.run(3.0)
    bench.sleep(20.0)
    bench.give(MANAGER, Joined())
    bench.give(INSTANCE, Gone("reset"))
    assert [(at_s, view.members) for at_s, view in bench.views(MANAGER)] == [(123.0, ())]


def test_a_suspect_that_ended_and_came_back_before_anything_is_published_is_replaced() -> None:
    bench = make_bench(DISPATCHER, INSTANCE, OTHER)
    bench.run(3.0)
    bench.sleep(20.0)
    bench.give(INSTANCE, Gone("reset"))
    bench.give(RESTARTED, Joined())
    bench.give(RESTARTED, report())
    bench.give(OTHER, report())
    (at_s, view) = bench.views()[-1]
    assert (at_s, view.base_version) == (123.0, 0)
    assert {one.address: one.suspect for one in view.members} == {OTHER: False, RESTARTED: False}


def test_what_was_to_be_published_when_it_slept_waits_too() -> None:
    bench = make_bench(DISPATCHER, INSTANCE, OTHER, views__publish_interval_s=0.1)
    bench.run(0.25)
    heartbeat(bench, 3.0)
    bench.give(INSTANCE, report(free_slots=7))
    assert bench.suspicions(OTHER) == [(3.0, True)]
    before = len(bench.views())
    bench.give(INSTANCE, report(free_slots=6))
    bench.sleep(20.0)
    assert len(bench.views()) == before
    bench.give(OTHER, report())
    (_, view) = bench.views()[-1]
    assert {one.address: (one.suspect, one.free_slots) for one in view.members} == {
        INSTANCE: (False, 6),
        OTHER: (False, 100),
    }


def test_after_a_sleep_a_restarted_instance_is_not_known_by_its_predecessor() -> None:
    bench = make_bench()
    heartbeat(bench, 40.0)
    bench.give(INSTANCE, Gone())
    bench.give(ETCD, MembersReset(()))
    bench.run(1.0)
    bench.sleep(2.0)
    bench.give(RESTARTED, Joined())
    heartbeat(bench, 5.5, 0.5, RESTARTED)
    bench.run(3.0)
    assert bench.suspicions(RESTARTED) == [(51.5, True)]
