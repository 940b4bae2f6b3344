"""The monitor's core: which instance is suspect at which time, what is published when, and what it keeps."""

from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined, Send, sends
from dunlin.messages.fleet import (
    DispatcherReport,
    ExplainQuery,
    Explanation,
    FleetStatus,
    FleetView,
    MemberView,
    Reason,
    Reasons,
    StatusQuery,
)
from dunlin.messages.membership import MemberDown, MembersReset, MemberUp
from dunlin.wire import codec
from services.monitor.config import MonitorConfig
from services.monitor.core import TRACES, PublishDue, WatchdogTick
from tests.services.monitor.bench import (
    DISPATCHER,
    ETCD,
    INSTANCE,
    MANAGER,
    ME,
    OTHER,
    RESTARTED,
    TOOL,
    Bench,
    heartbeat,
    make_bench,
    member,
    report,
)
from tests.settings import configured


class TestSuspicion:
    def test_an_idle_instance_that_reports_is_trusted_for_ever(self) -> None:
        bench = make_bench()
        heartbeat(bench, 60.0)
        assert bench.suspicions() == []

    def test_an_instance_that_falls_silent_is_suspect_after_three_seconds(self) -> None:
        bench = make_bench()
        bench.give(INSTANCE, report())
        bench.run(2.99)
        assert bench.suspicions() == []
        bench.run(0.01)
        assert bench.suspicions() == [(3.0, True)]

    def test_an_instance_that_was_restarted_is_known_by_its_predecessors_reports(self) -> None:
        bench = make_bench()
        heartbeat(bench, 40.0)
        bench.give(RESTARTED, Joined())
        heartbeat(bench, 5.5, 0.5, RESTARTED)
        bench.run(2.0)
        assert bench.suspicions(RESTARTED) == [(46.75, True)]

    def test_a_report_ends_the_silence(self) -> None:
        bench = make_bench()
        bench.run(4.0)
        bench.give(INSTANCE, report())
        assert bench.suspicions() == [(3.0, True), (4.0, False)]

    def test_a_registered_instance_that_never_joined_is_suspect_too(self) -> None:
        bench = make_bench(DISPATCHER)
        bench.give(ETCD, MembersReset((member(INSTANCE),)))
        bench.run(3.0)
        assert bench.suspicions() == [(3.0, True)]

    def test_its_silence_lasts_however_often_its_registration_is_told(self) -> None:
        bench = make_bench(DISPATCHER)
        bench.give(ETCD, MembersReset((member(INSTANCE),)))
        bench.run(2.0)
        bench.give(ETCD, MembersReset((member(INSTANCE),)))
        bench.run(1.0)
        assert bench.suspicions() == [(3.0, True)]

    def test_a_report_without_a_stream_ends_no_silence(self) -> None:
        bench = make_bench(DISPATCHER)
        bench.give(ETCD, MemberUp(member(INSTANCE)))
        bench.run(2.0)
        bench.give(INSTANCE, report())
        bench.run(1.0)
        assert bench.suspicions() == [(3.0, True)]

    def test_a_legal_step_of_six_seconds_is_progress_while_safepoints_move(self) -> None:
        bench = make_bench()
        for safepoints in range(12):
            bench.give(INSTANCE, report(outstanding_steps=1, safepoints=safepoints))
            bench.run(0.5)
        bench.give(INSTANCE, report(outstanding_steps=0, safepoints=12, steps_total=1))
        assert bench.suspicions() == []

    def test_reports_do_not_hide_a_stuck_engine(self) -> None:
        bench = make_bench()
        bench.give(INSTANCE, report(outstanding_steps=2, safepoints=5))
        heartbeat(bench, 2.5, outstanding_steps=2, safepoints=5)
        assert bench.suspicions() == []
        heartbeat(bench, 1.0, outstanding_steps=2, safepoints=5)
        assert bench.suspicions() == [(3.0, True)]

    def test_the_clock_starts_when_work_begins_and_not_when_the_last_work_ended(self) -> None:
        bench = make_bench()
        bench.give(INSTANCE, report(safepoints=5))
        heartbeat(bench, 10.0, safepoints=5)
        heartbeat(bench, 3.0, outstanding_steps=1, safepoints=5)
        assert bench.suspicions() == []
        heartbeat(bench, 1.0, outstanding_steps=1, safepoints=5)
        assert bench.suspicions() == [(13.5, True)]

    @pytest.mark.parametrize(
        "sign", [{"safepoints": 6}, {"steps_total": 8}, {"outstanding_steps": 0}, {"engine_pid": 10}]
    )
    def test_each_sign_of_progress_lifts_the_suspicion(self, sign: dict[str, int]) -> None:
        stuck = {"outstanding_steps": 1, "safepoints": 5, "steps_total": 7}
        bench = make_bench()
        bench.give(INSTANCE, report(**stuck))
        heartbeat(bench, 4.0, **stuck)
        bench.give(INSTANCE, report(**(stuck | sign)))
        assert bench.suspicions() == [(3.0, True), (4.0, False)]

    def test_the_reason_names_the_numbers(self) -> None:
        bench = make_bench()
        bench.give(INSTANCE, report(outstanding_steps=2, safepoints=5))
        heartbeat(bench, 3.0, outstanding_steps=2, safepoints=5)
        why = bench.views()[-1][1].members[0].why
        assert why is not None
        figures = {figure.name: figure.value for figure in why.figures}
        assert figures == {"unchanged_s": 3.0, "limit_s": 3.0, "outstanding_steps": 2, "safepoints": 5}
        assert (why.policy, why.chosen) == ("progress", "suspect")

    def test_silence_and_trust_have_their_reasons_too(self) -> None:
        bench = make_bench()
        bench.run(3.0)
        bench.give(INSTANCE, report(safepoints=5, steps_total=2))
        whys = [one.why for _, view in bench.views() for one in view.members if one.why is not None]
        told = [(why.policy, why.chosen, [(one.name, one.value) for one in why.figures]) for why in whys]
        assert told == [
            ("silence", "suspect", [("silent_s", 3.0), ("limit_s", 3.0)]),
            ("progress", "trust", [("safepoints", 5), ("steps", 2)]),
        ]

    def test_one_suspicion_is_counted_once(self) -> None:
        bench = make_bench()
        bench.run(10.0)
        assert bench.core.suspicions_total == 1

    def test_timers_do_not_multiply(self) -> None:
        bench = make_bench()
        for _ in range(20):
            bench.give(DISPATCHER, DispatcherReport())
        bench.run(10.0)
        assert [(at_s, timer) for at_s, _, timer in bench.timers] == [(110.25, WatchdogTick())]


class TestViews:
    def test_a_newcomer_gets_everything_and_then_differences(self) -> None:
        bench = make_bench(INSTANCE)
        bench.give(INSTANCE, report())
        bench.give(DISPATCHER, Joined())
        ((_, full),) = bench.views()
        assert (full.version, full.base_version, [view.address for view in full.members]) == (3, 0, [INSTANCE])
        assert full.members[0].ready
        bench.give(OTHER, Joined())
        difference = bench.views()[-1][1]
        assert difference == FleetView(4, (MemberView(OTHER),), base_version=3)

    def test_a_view_without_members_is_published_too(self) -> None:
        bench = make_bench(DISPATCHER)
        assert bench.views() == [(100.0, FleetView(1, ()))]

    def test_only_dispatchers_and_managers_are_told(self) -> None:
        bench = make_bench(DISPATCHER, MANAGER, Address("kvstore", "k", 3), INSTANCE)
        assert {peer for _, peer, _ in bench.sent} == {DISPATCHER, MANAGER}

    @pytest.mark.parametrize("change", [{"ready": False}, {"plan_version": 1}, {"group": 2}, {"capacity_slots": 7}])
    def test_a_change_of_note_goes_out_at_once(self, change: dict[str, Any]) -> None:
        bench = make_bench()
        bench.give(INSTANCE, report())
        before = len(bench.views())
        bench.give(INSTANCE, report(**change))
        assert len(bench.views()) == before + 1

    def test_load_goes_out_at_most_every_interval_and_the_newest_wins(self) -> None:
        bench = make_bench(views__publish_interval_s=0.1)
        bench.give(INSTANCE, report())
        start = len(bench.views())
        for free in range(9, 0, -1):
            bench.run(0.01)
            bench.give(INSTANCE, report(free_slots=free))
        assert len(bench.views()) == start
        bench.run(0.5)
        ((at_s, view),) = bench.views()[start:]
        assert (round(at_s - 100.0, 6), view.members[0].free_slots) == (0.1, 1)
        bench.give(INSTANCE, report(free_slots=50))
        assert (bench.views()[-1][0], bench.views()[-1][1].members[0].free_slots) == (bench.now_s, 50)

    def test_however_often_load_changes_one_timer_waits_to_publish_it(self) -> None:
        bench = make_bench(views__publish_interval_s=0.1)
        bench.give(INSTANCE, report())
        for free in range(3):
            bench.give(INSTANCE, report(free_slots=free))
        due = [(at_s, timer) for at_s, _, timer in bench.timers if isinstance(timer, PublishDue)]
        assert due == [(100.1, PublishDue(bench.core.fleet_views.version))]

    def test_load_rides_along_with_a_change_of_note(self) -> None:
        bench = make_bench()
        bench.give(INSTANCE, report())
        bench.give(INSTANCE, report(free_slots=9))
        bench.give(INSTANCE, report(free_slots=9, ready=False))
        start = len(bench.views())
        bench.run(1.0)
        assert len(bench.views()) == start
        assert bench.views()[-1][1].members[0].free_slots == 9

    def test_a_heartbeat_without_news_makes_no_version(self) -> None:
        bench = make_bench()
        bench.give(INSTANCE, report(safepoints=1))
        version = bench.core.fleet_views.version
        heartbeat(bench, 5.0, safepoints=2)
        assert bench.core.fleet_views.version == version

    def test_versions_follow_each_other_without_gaps(self) -> None:
        bench = make_bench()
        for free in range(5):
            bench.give(INSTANCE, report(free_slots=free, ready=bool(free % 2)))
        versions = [(view.version, view.base_version) for _, view in bench.views()][1:]
        assert versions == [(base + 1, base) for base in range(1, len(versions) + 1)]

    def test_only_the_timer_of_the_newest_version_publishes_what_changed_since(self) -> None:
        bench = make_bench(views__publish_interval_s=0.1)
        bench.give(INSTANCE, report())
        bench.give(INSTANCE, report(free_slots=9))
        bench.run(0.09)
        version = bench.core.fleet_views.version
        assert sends(bench.give(ME, PublishDue(version - 1))) == []
        bench.run(0.0099)  # as exact as times of the clock are: the timer may come a moment early
        (effect,) = sends(bench.give(ME, PublishDue(version)))
        assert isinstance(effect.message, FleetView)
        assert effect.message.members[0].free_slots == 9
        assert sends(bench.give(ME, PublishDue(version + 1))) == [], "nothing changed since"


class TestWarmUp:
    def test_a_new_monitor_waits_for_the_registered_processes(self) -> None:
        bench = Bench()
        bench.give(DISPATCHER, Joined())
        bench.give(ETCD, MembersReset((member(INSTANCE), member(OTHER))))
        bench.give(INSTANCE, Joined())
        bench.give(INSTANCE, report())
        bench.run(0.5)
        assert bench.views() == []
        bench.give(OTHER, Joined())
        bench.give(OTHER, report(ready=False))
        ((at_s, view),) = bench.views()
        assert (at_s, view.base_version) == (100.5, 0)
        assert {one.address: one.ready for one in view.members} == {INSTANCE: True, OTHER: False}

    def test_it_waits_no_longer_than_it_was_told(self) -> None:
        bench = Bench(views__warm_up_s=2.0)
        bench.give(DISPATCHER, Joined())
        bench.give(ETCD, MembersReset((member(INSTANCE), member(OTHER))))
        bench.give(OTHER, Joined())
        bench.give(OTHER, report())
        bench.run(1.9)
        assert bench.views() == []
        bench.run(0.1)
        ((at_s, view),) = bench.views()
        assert (at_s, {one.address: one.ready for one in view.members}) == (102.0, {INSTANCE: False, OTHER: True})

    def test_without_etcd_it_begins_when_the_time_is_up(self) -> None:
        bench = Bench(views__warm_up_s=2.0)
        bench.give(DISPATCHER, Joined())
        bench.give(INSTANCE, Joined())
        bench.give(INSTANCE, report())
        bench.run(1.75)
        assert bench.views() == []
        bench.run(0.25)
        assert [view.members[0].ready for _, view in bench.views()] == [True]

    def test_who_joins_meanwhile_gets_the_first_version_once(self) -> None:
        bench = Bench()
        bench.give(ETCD, MembersReset((member(INSTANCE),)))
        bench.give(MANAGER, Joined())
        bench.give(INSTANCE, Joined())
        bench.give(INSTANCE, report())
        bench.give(DISPATCHER, Joined())
        assert [view.version for _, view in bench.views(MANAGER)] == [2]
        assert [view.version for _, view in bench.views(DISPATCHER)] == [2]

    def test_in_a_big_fleet_what_becomes_ready_together_is_published_together(self) -> None:
        many = [Address("instance", f"i{number}", 10 + number) for number in range(3)]
        bench = make_bench(DISPATCHER, *many, views__small_fleet=1, views__urgent_per_instance_s=0.01)
        for instance in many:
            bench.give(instance, report(ready=False))
        bench.run(1.0)
        before = len(bench.views())
        for instance in many:
            bench.give(instance, report())
        assert len(bench.views()) == before + 1  # at once: nothing was published for a while
        bench.run(0.019)
        assert len(bench.views()) == before + 1
        bench.run(0.002)
        (_, last) = bench.views()[-1]
        assert len(bench.views()) == before + 2
        assert [view.address for view in last.members] == many[1:]

    def test_a_big_fleet_that_is_registered_right_after_an_empty_view_is_published_soon_too(self) -> None:
        many = tuple(member(Address("instance", f"i{number}", 10 + number)) for number in range(3))
        bench = make_bench(DISPATCHER, views__small_fleet=1, views__urgent_per_instance_s=0.01)
        bench.give(ETCD, MembersReset(many))
        bench.run(0.2)
        assert [(at_s, len(view.members)) for at_s, view in bench.views()] == [(100.0, 0), (100.02, 3)]


class TestPresence:
    def test_a_lost_lease_removes_no_process_that_has_a_stream(self) -> None:
        bench = make_bench()
        bench.give(ETCD, MemberUp(member(INSTANCE)))
        bench.give(ETCD, MemberDown(INSTANCE))
        assert bench.views()[-1][1].removed == ()
        bench.give(INSTANCE, Gone("reset"))
        assert bench.views()[-1][1].removed == (INSTANCE,)

    @pytest.mark.parametrize("ended", [MembersReset(()), MemberDown(INSTANCE)])
    def test_a_lost_stream_removes_no_process_that_is_registered(self, ended: MembersReset | MemberDown) -> None:
        bench = make_bench()
        bench.give(ETCD, MemberUp(member(INSTANCE)))
        bench.give(INSTANCE, Gone("reset"))
        bench.run(3.0)
        assert bench.suspicions() == [(3.0, True)]
        bench.give(ETCD, ended)
        assert bench.views()[-1][1].removed == (INSTANCE,)

    @pytest.mark.parametrize("how", ["stream", "registration"])
    def test_a_newer_incarnation_takes_the_place_of_the_older(self, how: str) -> None:
        bench = make_bench()
        bench.give(INSTANCE, report())
        if how == "stream":
            bench.give(RESTARTED, Joined())
        else:
            bench.give(ETCD, MemberUp(member(RESTARTED)))
        view = bench.views()[-1][1]
        assert (view.removed, [one.address for one in view.members]) == ((INSTANCE,), [RESTARTED])

    def test_an_old_incarnation_that_wakes_changes_nothing(self) -> None:
        bench = make_bench(DISPATCHER, RESTARTED, INSTANCE)
        version = bench.core.fleet_views.version
        bench.give(INSTANCE, report(outstanding_steps=1))
        assert (bench.core.stale_total, bench.core.fleet_views.version) == (1, version)
        bench.give(RESTARTED, Gone())
        bench.give(INSTANCE, report())
        assert bench.core.stale_total == 2
        assert INSTANCE not in [view.address for view in bench.core.fleet_views.snapshot().members]

    def test_a_report_without_a_stream_is_stale(self) -> None:
        bench = make_bench(DISPATCHER)
        bench.give(INSTANCE, report())
        assert bench.core.stale_total == 1

    def test_an_instance_report_by_another_role_fails_nothing(self) -> None:
        bench = make_bench(DISPATCHER)
        bench.give(DISPATCHER, report())
        assert bench.core.fleet_views.snapshot().members == ()


class TestQueries:
    def test_status_names_every_process_with_its_report(self) -> None:
        bench = make_bench(DISPATCHER, INSTANCE)
        bench.give(ETCD, MembersReset((member(INSTANCE, pid=42), member(ME, pid=7), member(OTHER, pid=43))))
        bench.give(INSTANCE, report(free_slots=3))
        bench.run(2.0)
        bench.give(DISPATCHER, DispatcherReport(running=2))
        (effect,) = sends(bench.give(TOOL, StatusQuery()))
        assert effect.to == TOOL
        status = effect.message
        assert isinstance(status, FleetStatus)
        lines = {line.address: line for line in status.members}
        assert list(lines) == [DISPATCHER, INSTANCE, OTHER, ME]
        assert lines[INSTANCE].instance == report(free_slots=3)
        assert (lines[INSTANCE].pid, lines[INSTANCE].connected, lines[INSTANCE].silent_s) == (42, True, 2.0)
        assert (lines[OTHER].pid, lines[OTHER].connected, lines[OTHER].silent_s) == (43, False, 2.0)
        assert lines[DISPATCHER].dispatcher == DispatcherReport(running=2)
        assert lines[ME].connected

    def test_a_tool_is_no_member(self) -> None:
        bench = make_bench(DISPATCHER)
        bench.give(TOOL, Joined())
        (effect,) = sends(bench.give(TOOL, StatusQuery()))
        assert isinstance(effect.message, FleetStatus)
        assert [line.address for line in effect.message.members] == [DISPATCHER, ME]
        bench.give(TOOL, Gone())
        assert bench.core.status(100.0) == effect.message

    def test_the_outlet_of_traces_is_no_member(self) -> None:
        bench = make_bench(DISPATCHER, TRACES, traces=True)
        assert [line.address for line in bench.core.status(100.0).members] == [DISPATCHER, ME]

    @pytest.mark.parametrize("wanted", [True, False])
    def test_reasons_are_passed_on_when_traces_are_wanted(self, wanted: bool) -> None:
        bench = make_bench(DISPATCHER, traces=wanted)
        reasons = Reasons((), lost=3)
        assert sends(bench.give(INSTANCE, reasons)) == ([Send(TRACES, reasons)] if wanted else [])

    def test_a_suspicion_is_recorded_for_the_requests_it_concerns(self) -> None:
        from dunlin.messages.dispatch import Accepted

        bench = make_bench()
        accepted = Reason(100.5, INSTANCE, DISPATCHER, "Accepted", codec.encode(Accepted(1, 1, 7)))
        bench.give(INSTANCE, Reasons((accepted,), lost=3))
        bench.run(4.0)
        (effect,) = sends(bench.give(TOOL, ExplainQuery("req-c-1")))
        assert isinstance(effect.message, Explanation)
        first, second = effect.message.reasons
        assert first == accepted
        assert (second.at_s, second.sender, second.to, second.kind) == (103.0, ME, INSTANCE, "FleetView")
        view = codec.decode(second.kind, second.payload)
        assert isinstance(view, FleetView)
        assert view.members[0].suspect
        assert (103.0, view) in bench.views(), "the record is what subscribers were sent"
        assert bench.core.status(104.0).reasons_lost == 3

    def test_an_unknown_request_has_no_reasons(self) -> None:
        bench = make_bench()
        assert sends(bench.give(TOOL, ExplainQuery("nonsense"))) == [Send(TOOL, Explanation(()))]


@pytest.mark.parametrize(
    "settings", [{"liveness__stuck_s": 0.0}, {"liveness__tick_s": float("nan")}, {"reasons__ring_records": 0}]
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs a"):
        configured(MonitorConfig, **settings)
