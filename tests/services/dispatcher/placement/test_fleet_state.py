"""What is believed of instances: the view, own promises on top, pauses, limits."""

from typing import Any

from dunlin.effects import Address
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.types import RequestClass
from services.dispatcher.placement.fleet_state import FleetState
from tests.services.dispatcher.factories import MONITOR, A, B, member


def fleet(*members: MemberView, max_waiting: int = 2) -> FleetState:
    made = FleetState(max_waiting, view_lag_s=0.1)
    for each in members:
        made.add_instance(each.address)
    made.apply_view(MONITOR, FleetView(1, members), 0.0)
    return made


def asked(made: FleetState, slots: int = 10, longest: int = 20, unfit: Any = ()) -> list[Address]:
    return [address for address, _ in made.candidates(slots, longest, list(unfit))]


def candidate(made: FleetState) -> Any:
    ((_, found),) = made.candidates(1, 1, [])
    return found


def test_what_an_instance_says_of_its_length_counts_until_the_next_view() -> None:
    made = fleet(member(A), member(B, capacity_slots=500, free_slots=500))
    made.limit_length(A, 800)
    assert (made.max_length(A), made.fleet_max_length([]), made.fleet_max_length([A])) == (800, 800, 500)
    ((found, with_less),) = made.candidates(10, 700, [])
    assert (found, with_less.free_slots) == (A, 800)
    assert asked(made, longest=900) == []
    made.limit_length(A, 900)
    assert made.max_length(A) == 800, "it grows by views alone"
    made.limit_length(Address("instance", "gone", 3), 10)
    made.apply_view(MONITOR, FleetView(2, (member(A),), base_version=1), 0.1)
    assert asked(made, longest=900) == [A]


def test_promises_lower_what_is_free_until_they_are_released() -> None:
    made = fleet(member(A, free_slots=100, running=3))
    made.reserve(A, 1, 40)
    made.reserve(A, 2, 30)
    assert (candidate(made).free_slots, candidate(made).requests) == (30, 5)
    made.release(A, 1)
    made.release(A, 1)
    made.release(B, 1)
    assert (candidate(made).free_slots, candidate(made).requests) == (70, 4)


def test_a_view_counts_what_was_accepted_a_while_ago() -> None:
    made = fleet(member(A, free_slots=100))
    made.reserve(A, 1, 40)
    made.reserve(A, 2, 20)
    made.on_accepted(A, 1, now_s=1.0)
    made.apply_view(MONITOR, FleetView(2, (member(A, free_slots=100),)), 1.05)
    assert candidate(made).free_slots == 40
    made.apply_view(MONITOR, FleetView(3, (member(A, free_slots=60),)), 1.1)
    assert candidate(made).free_slots == 40
    made.apply_view(MONITOR, FleetView(4, (member(A, free_slots=60),)), 99.0)
    assert candidate(made).free_slots == 40  # the other one is not accepted yet


def test_accepting_what_was_never_promised_changes_nothing() -> None:
    made = fleet(member(A))
    made.on_accepted(A, 7, 1.0)
    made.on_accepted(B, 7, 1.0)
    assert candidate(made).free_slots == 1000


def test_room_is_slots_or_a_short_queue() -> None:
    made = fleet(member(A, free_slots=10))
    assert asked(made, slots=10) == [A]
    assert asked(made, slots=11) == [A]
    made.reserve(A, 1, 0)
    made.reserve(A, 2, 0)
    assert asked(made, slots=10) == [A]
    assert asked(made, slots=11) == []
    assert made.has_room()


def test_a_full_fleet_has_no_room() -> None:
    made = fleet(member(A, free_slots=0, waiting=2))
    assert not made.has_room()
    assert not fleet().has_room()


def test_limits_and_the_unfit() -> None:
    made = fleet(member(A, max_positions=50), member(B, capacity_slots=80))
    assert asked(made, longest=50) == [A, B]
    assert asked(made, longest=51) == [B]
    assert asked(made, longest=81) == []
    assert asked(made, longest=20, unfit=[A]) == [B]
    assert (made.max_length(A), made.max_length(B), made.fleet_max_length([])) == (50, 80, 80)
    assert (made.fleet_max_length([B]), made.fleet_max_length([A, B])) == (50, 0)


def test_no_limit_is_known_before_the_first_report() -> None:
    assert fleet().fleet_max_length([]) is None
    assert fleet(member(A, capacity_slots=0)).fleet_max_length([]) is None
    assert fleet(member(A, max_positions=0)).fleet_max_length([]) == 1000


def test_a_pause_ends_with_its_own_number_or_with_any_sign_of_life() -> None:
    made = fleet(member(A))
    first, second = made.pause(A), made.pause(A)
    assert (first, second) == (1, 2)
    made.resume(A, first)
    assert asked(made) == []
    made.resume(A, second)
    assert asked(made) == [A]
    made.pause(A)
    made.resume(A)
    made.resume(B)
    assert asked(made) == [A]
    made.pause(A)
    made.apply_view(MONITOR, FleetView(2, (member(B),), base_version=1), 1.0)
    assert asked(made) == []
    made.apply_view(MONITOR, FleetView(3, (member(A),), base_version=2), 1.0)
    assert asked(made) == [A]


def test_a_new_stream_starts_without_promises_or_pause() -> None:
    made = fleet(member(A))
    made.reserve(A, 1, 999)
    made.pause(A)
    made.remove_instance(A)
    assert made.serving == []
    made.remove_instance(A)
    made.add_instance(A)
    assert candidate(made).free_slots == 1000


def test_part_of_a_view_changes_only_that_part() -> None:
    made = fleet(member(A), member(B))
    suspects = made.apply_view(MONITOR, FleetView(2, (member(A, suspect=True),), base_version=1), 0.0)
    assert suspects == [A]
    assert made.serving == [B]
    made.apply_view(MONITOR, FleetView(3, (), base_version=2, removed=(B, A)), 0.0)
    assert made.serving == []
    assert made.fleet_max_length([]) is None


def test_a_full_view_replaces_everything() -> None:
    made = fleet(member(A), member(B))
    made.apply_view(MONITOR, FleetView(2, (member(A),)), 0.0)
    assert made.serving == [A]


def test_versions_of_one_monitor_only_grow_and_an_older_monitor_is_not_heard() -> None:
    made = fleet(member(A))
    for monitor, version in ((MONITOR, 1), (MONITOR._replace(incarnation=3), 50)):
        assert made.apply_view(monitor, FleetView(version, (member(A, suspect=True),)), 0.0) == []
    assert (made.serving, made.stale_total) == ([A], 2)
    newer = MONITOR._replace(incarnation=8)
    assert made.view_source == (MONITOR, 1)
    assert made.apply_view(newer, FleetView(1, (member(A, suspect=True),)), 0.0) == [A]
    assert made.view_source == (newer, 1)
    assert made.apply_view(MONITOR, FleetView(99, (member(A),)), 0.0) == []
    assert (made.serving, made.stale_total) == ([], 3)


BUSY_WITH_BATCH = {
    "free_slots": 100,
    "running": 9,
    "waiting": 4,
    "waiting_tokens": 500,
    "batch_waiting": 3,
    "batch_waiting_tokens": 450,
    "preemptible_slots": 600,
    "preemptible_running": 8,
}


def of_class(made: FleetState, request_class: RequestClass) -> tuple[int, int, int]:
    """(free slots, requests, waiting tokens) of the only candidate as a request of the class sees it."""
    ((_, found),) = made.candidates(1, 1, [], request_class=request_class)
    return found.free_slots, found.requests, found.waiting_tokens


def test_an_interactive_request_does_not_see_batch_work_that_gives_way() -> None:
    made = fleet(member(A, preempts_batch=True, **BUSY_WITH_BATCH), max_waiting=9)
    made.reserve(A, 1, 40)
    made.reserve(A, 2, 30, RequestClass.BATCH)
    assert of_class(made, RequestClass.INTERACTIVE) == (660, 3, 50)
    assert of_class(made, RequestClass.BATCH) == (30, 15, 500)
    made.release(A, 2)
    assert of_class(made, RequestClass.BATCH) == (60, 14, 500)


def test_where_batch_work_does_not_give_way_what_was_dispatched_of_it_counts() -> None:
    busy = BUSY_WITH_BATCH | {"preemptible_slots": 0, "preemptible_running": 0}
    made = fleet(member(A, **busy), max_waiting=9)
    made.reserve(A, 2, 30, RequestClass.BATCH)
    assert of_class(made, RequestClass.INTERACTIVE) == (70, 10, 50)


def test_each_class_has_a_queue_limit_of_its_own() -> None:
    made = fleet(member(A, free_slots=0, waiting=2, batch_waiting=2), max_waiting=2)
    assert made.has_room(5)
    assert not made.has_room(5, RequestClass.BATCH)
    made.apply_view(MONITOR, FleetView(2, (member(A, free_slots=0, waiting=2),)), 9.0)
    assert not made.has_room(5)
    assert made.has_room(5, RequestClass.BATCH)


def test_a_monitor_that_slept_is_not_heard_while_its_successor_is_there_though_it_says_nothing() -> None:
    made, successor = fleet(member(A)), MONITOR._replace(incarnation=MONITOR.incarnation + 1)
    made.apply_view(successor, FleetView(1, (member(A),)), 0.0)
    made.forget_monitor(successor)
    made.add_monitor(successor)  # its stream is open again, and it sleeps
    assert made.apply_view(MONITOR, FleetView(99, (member(A, suspect=True),)), 0.0) == []
    assert (made.serving, made.stale_total) == ([A], 1)
    other = MONITOR._replace(name="another", incarnation=1)
    assert made.apply_view(other, FleetView(1, (member(A, suspect=True),)), 0.0) == [A]
    made.forget_monitor(successor)
    assert made.apply_view(MONITOR, FleetView(99, (member(A),)), 0.0) == []
    assert made.serving == [A]


def test_an_instance_that_left_the_view_counts_as_new_when_it_is_back() -> None:
    made = fleet(member(A), member(B))
    made.remove_instance(A)
    assert made.trusted == [B]
    made.apply_view(MONITOR, FleetView(2, (member(B),)), 0.0)
    made.apply_view(MONITOR, FleetView(3, (member(A), member(B))), 0.0)
    assert made.trusted == [A, B]


def test_a_suspect_is_told_by_the_view_that_tells_of_it_alone() -> None:
    made = fleet(member(A), member(B))
    assert made.apply_view(MONITOR, FleetView(2, (member(A, suspect=True),), base_version=1), 0.0) == [A]
    assert made.apply_view(MONITOR, FleetView(3, (member(B),), base_version=2), 0.0) == []


def test_an_instance_that_is_excluded_twice_leaves_out_no_other() -> None:
    assert fleet(member(A), member(B)).fleet_max_length([A, A]) == 1000
    assert fleet(member(A, capacity_slots=0), member(B)).fleet_max_length([A]) == 1000, "nor one without slots"


def test_what_an_instance_says_of_its_length_is_no_news_where_its_positions_are_fewer() -> None:
    made = fleet(member(A, max_positions=50))
    made.limit_length(A, 800)
    assert (made.capacity_slots(A), made.max_length(A)) == (1000, 50)
