"""The dispatcher's decisions, one message at a time and at exact times."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.cores.reporting import ReportDue
from dunlin.effects import Address, Gone, Joined, Send
from dunlin.messages.dispatch import (
    Accepted,
    Cancel,
    Place,
    Tokens,
)
from dunlin.messages.door import (
    Abort,
    Admitted,
    CancelById,
    CancelResult,
    Delta,
    Quota,
    Quotas,
    RejectionCode,
    SubmitRejected,
)
from dunlin.messages.fleet import DispatcherReport, FleetView
from dunlin.messages.membership import Member, MemberDown, MembersReset
from dunlin.messages.types import FinishReason, RequestClass, SamplingParams, f32, i8, i32, i64
from services.dispatcher.requests.timers import DeadlineDue, OutageTimeout
from tests.services.dispatcher.factories import (
    MONITOR,
    SELF,
    A,
    B,
    Bench,
    client,
    member,
    messages,
    only,
    rows,
    submit,
    target,
)


def test_a_request_is_admitted_dispatched_and_streamed_to_its_end() -> None:
    bench = Bench().fleet(member(A))
    sent = bench.give(client("c"), submit(max_tokens=2))
    assert (sent[0].to, only(sent, Admitted).request) == (client("c"), "req-2a-1")
    place = only(sent, Place)
    assert (place.request, place.attempt, list(place.tokens), place.prompt_tokens) == (1, 1, [5, 6, 7], 3)
    assert place.why is not None
    assert place.why.chosen == str(A)
    assert bench.give(A, Accepted(1, 1, 9)) == []
    assert bench.give(A, rows((1, 1, 3, 70))) == [Send(client("c"), Delta(i32([70])))]
    last = bench.give(A, rows((1, 1, 4, 71), finish=FinishReason.LENGTH))
    assert last == [Send(client("c"), Delta(i32([71]), finish=FinishReason.LENGTH))]
    assert len(bench.core.journal) == 0
    assert bench.core.report() == DispatcherReport(finished_total=1, tokens_total=2)


def test_an_instance_is_told_how_long_the_client_has_waited() -> None:
    bench = Bench()
    bench.give(client("c"), submit(), 1.0)
    bench.give(A, Joined(), 3.0)
    place = only(bench.view(member(A)), Place)
    assert (place.queued_s, place.lost_s) == (2.0, 0.0)
    bench.give(A, Accepted(1, 1, 9), 3.5)
    bench.give(B, Joined(), 3.5)
    bench.view(member(A), member(B))
    again = only(bench.give(A, Gone("killed"), 4.25), Place)
    assert (again.attempt, again.queued_s, again.lost_s) == (2, 2.0, 1.25), "no token came"
    bench.give(B, rows((1, 2, 3, 70)), 5.0)
    bench.give(B, rows((1, 2, 4, 71)), 5.5)
    bench.give(A, Joined(), 5.5)
    bench.view(member(A))
    last = only(bench.give(B, Gone("killed"), 6.25), Place)
    assert (last.attempt, last.queued_s, last.lost_s) == (3, 0.0, 0.75), "since the last token"


def test_the_first_token_starts_the_clock_anew() -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.run("c")
    bench.give(A, rows((1, 1, 3, 70)), 5.0)
    place = only(bench.give(A, Gone("killed"), 6.5), Place)
    assert (place.queued_s, place.lost_s) == (0.0, 1.5)


def test_the_journal_and_the_wire_share_no_array() -> None:
    bench = Bench().fleet(member(A))
    asked = submit()
    place = only(bench.give(client("c"), asked), Place)
    bench.give(A, rows((1, 1, 3, 70)))
    assert list(place.tokens) == list(asked.tokens) == [5, 6, 7]


def test_one_batch_reaches_each_client_with_its_own_logprobs() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c", sampling=SamplingParams(logprobs=2))
    bench.run("d")
    batch = rows((1, 1, 3, 70), (2, 1, 3, 80))
    batch = replace(batch, top_count=i32([2, 0]), top_token=i32([70, 1]), top_logprob=f32([-0.5, -2.0]))
    sent = bench.give(A, batch)
    rich = Delta(i32([70]), f32([-0.5]), i32([2]), i32([70, 1]), f32([-0.5, -2.0]))
    assert sent == [Send(client("c"), rich), Send(client("d"), Delta(i32([80])))]


# --- clients ---


def test_an_aborted_request_is_forgotten_and_cancelled_where_it_runs() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    sent = bench.give(client("c"), Abort())
    assert target(sent, Cancel) == [A]
    assert bench.core.report() == DispatcherReport(cancelled_total=1)
    assert bench.give(A, rows((1, 1, 3, 70))) == []
    assert bench.give(client("c"), Abort()) == []


def test_a_client_that_is_gone_aborts_its_request() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    assert target(bench.give(client("c"), Gone("connection closed")), Cancel) == [A]
    assert bench.core.report() == DispatcherReport(cancelled_total=1)


def test_a_stop_string_finishes_a_request() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    assert target(bench.give(client("c"), Abort(FinishReason.STOP)), Cancel) == [A]
    assert bench.core.report() == DispatcherReport(finished_total=1)


def test_a_queued_request_is_aborted_without_a_message_to_any_instance() -> None:
    bench = Bench()
    bench.give(client("c"), submit())
    assert bench.give(client("c"), Abort()) == []
    bench.give(A, Joined())
    assert bench.view(member(A)) == []
    assert bench.core.report() == DispatcherReport(cancelled_total=1)


def test_any_client_may_cancel_by_id() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    sent = bench.give(client("tool"), CancelById("req-2a-1"))
    assert only(sent, CancelResult) == CancelResult("req-2a-1", found=True)
    assert [(send.to, send.message.finish) for send in sent if isinstance(send.message, Delta)] == [
        (client("c"), FinishReason.CANCELLED)
    ]
    assert target(sent, Cancel) == [A]


@pytest.mark.parametrize("name", ["req-2a-2", "req-2b-1", "req-2a-01", "req-2A-1", "", "1", "req-2a-x", "req-2a- 1"])
def test_an_id_that_names_nothing_cancels_nothing(name: str) -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    assert bench.give(client("tool"), CancelById(name)) == [Send(client("tool"), CancelResult(name, found=False))]
    assert bench.core.report().running == 1


def test_a_deadline_ends_a_request_exactly_when_it_is_due() -> None:
    bench = Bench().fleet(member(A))
    bench.now_s = 10.0
    bench.run("c", timeout_s=2.5)
    bench.give(A, rows((1, 1, 3, 70)))
    sent = bench.fire(DeadlineDue)
    assert bench.now_s == 12.5
    delta = only(sent, Delta)
    assert (delta.finish, delta.detail) == (FinishReason.DEADLINE, "2.5 s are over: 1 of 4 tokens were generated")
    assert target(sent, Cancel) == [A]
    assert bench.core.report().failed_total == 1


def test_a_deadline_of_a_finished_request_is_ignored() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c", timeout_s=2.5)
    bench.give(A, rows((1, 1, 3, 70), finish=FinishReason.STOP))
    bench.run("d")
    assert bench.fire(DeadlineDue) == []


def test_a_second_request_of_one_address_is_refused() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    assert only(bench.give(client("c"), submit()), SubmitRejected).code is RejectionCode.INVALID


def test_a_full_queue_refuses_with_the_time_to_come_back() -> None:
    bench = Bench(admission__max_queued=2)
    for name in range(2):
        bench.give(client(name), submit())
    rejected = only(bench.give(client("late"), submit()), SubmitRejected)
    assert (rejected.code, rejected.retry_after_s) == (RejectionCode.FULL, 0.5)
    assert bench.core.report() == DispatcherReport(queued=2, refused_total=1)
    bench.give(client(0), Abort())
    assert messages(bench.give(client("late"), submit()), Admitted)[0].request == "req-2a-3"


def batch_of(bench: Bench, tenant: str, number: int) -> int:
    """Submit so many batch requests of a tenant; how many are admitted."""
    sent = [
        bench.give(client(f"{tenant} {bench.now_s} {index}"), submit(tenant=tenant, request_class=RequestClass.BATCH))
        for index in range(number)
    ]
    return sum(bool(messages(each, Admitted)) for each in sent)


def test_a_tenant_that_fills_the_queue_keeps_no_other_tenant_out() -> None:
    bench = Bench(admission__max_queued=12)
    assert batch_of(bench, "first", 20) == 12
    assert batch_of(bench, "second", 20) == 6
    assert batch_of(bench, "third", 20) == 4
    bench.now_s = 1.0
    assert batch_of(bench, "first", 20) == batch_of(bench, "second", 1) == batch_of(bench, "third", 1) == 0


def test_a_tenants_own_requests_count_once_while_the_queue_has_room() -> None:
    bench = Bench(admission__max_queued=12)
    assert batch_of(bench, "first", 8) + batch_of(bench, "second", 1) == 9
    bench.now_s = 1.0
    assert batch_of(bench, "first", 9) == 3


def test_interactive_requests_share_one_bound() -> None:
    bench = Bench(admission__max_queued=2)
    sent = [bench.give(client(name), submit(tenant=name)) for name in ("a", "b", "c")]
    assert [len(messages(each, Admitted)) for each in sent] == [1, 1, 0]


def test_weights_come_with_the_quotas() -> None:
    bench = Bench(placement__max_waiting_per_instance=8)
    bench.give(client("keys"), Quotas((Quota("one"), Quota("three", weight=3))))
    batch_of(bench, "one", 4)
    batch_of(bench, "three", 12)
    bench.give(A, Joined())
    sent = bench.view(member(A, free_slots=0))
    assert [place.tenant for place in messages(sent, Place)] == ["one", "three", "three", "three"] * 2


def test_the_time_to_come_back_follows_the_pace() -> None:
    bench = Bench(admission__max_queued=8, placement__max_waiting_per_instance=8, admission__max_wait_s=1e6).fleet(
        member(A, free_slots=0, waiting=7)
    )
    for number in range(1, 5):
        bench.run(number)
        bench.give(A, rows((number, 1, 3, 70), finish=FinishReason.STOP), at_s=10.0 * number)
    for name in range(9):
        bench.give(client(f"wait {name}"), submit())
    rejected = only(bench.give(client("late"), submit(), at_s=50.0), SubmitRejected)
    assert rejected.retry_after_s == 30.0  # eight queued, ten seconds each, half of it, at most 30
    bench.core._admission._ends_s.extend([49.0, 49.5, 50.0] * 11)
    rejected = only(bench.give(client("late"), submit(), at_s=50.0), SubmitRejected)
    assert rejected.retry_after_s == 0.5


def pressed(**config: Any) -> Bench:
    """Three wait in the queue and two at the instance, and a request ends every second."""
    bench = Bench(placement__max_waiting_per_instance=2, **config).fleet(member(A, free_slots=1000))
    for number in range(1, 5):
        bench.run(number)
    bench.view(member(A, free_slots=0, waiting=2))
    for name in range(3):
        bench.give(client(f"wait {name}"), submit())
    for number in range(1, 5):
        bench.give(A, rows((number, 1, 3, 70), finish=FinishReason.STOP), at_s=10.0 + number)
    assert bench.core.report().queued == 3
    return bench


def test_whose_turn_would_come_too_late_is_refused_at_once() -> None:
    assert not messages(pressed(admission__max_wait_s=5.0).give(client("c"), submit(), at_s=14.0), SubmitRejected)
    rejected = only(pressed(admission__max_wait_s=4.9).give(client("c"), submit(), at_s=14.0), SubmitRejected)
    assert rejected.code is RejectionCode.FULL
    assert rejected.detail == "5 requests wait already: its turn would come in 5.0 s, more than the 4.9 s allowed"
    assert rejected.retry_after_s == 0.5
    assert (
        only(pressed(admission__max_wait_s=2.0).give(client("c"), submit(), at_s=14.0), SubmitRejected).retry_after_s
        == 3.0
    )


def test_whose_deadline_comes_before_its_turn_is_refused_at_once() -> None:
    assert not messages(pressed().give(client("c"), submit(timeout_s=5.5), at_s=14.0), SubmitRejected)
    rejected = only(pressed().give(client("c"), submit(timeout_s=4.5), at_s=14.0), SubmitRejected)
    assert rejected.detail == "its turn would come in 5.0 s, and it is given up after 4.5 s"
    assert rejected.retry_after_s == 0.5


def test_batch_work_may_wait_as_long_as_there_is_room() -> None:
    batch = submit(request_class=RequestClass.BATCH)
    assert not messages(pressed(admission__max_wait_s=1.0).give(client("c"), batch, at_s=14.0), SubmitRejected)


def test_where_only_interactive_work_is_served_batch_work_is_refused() -> None:
    bench = Bench(admission__policy="interactive_only").fleet(member(A))
    batch = submit(request_class=RequestClass.BATCH)
    rejected = only(bench.give(client("b"), batch), SubmitRejected)
    assert (rejected.code, rejected.retry_after_s) == (RejectionCode.FORBIDDEN, 0.0)
    assert "interactive ones only" in rejected.detail
    assert target(bench.give(client("i"), submit()), Place) == [A]
    assert not messages(bench.give(client("e"), replace(batch, key="req-5-1")), SubmitRejected), (
        "it was let in elsewhere"
    )


def test_no_request_is_refused_while_none_waits() -> None:
    bench = Bench(admission__max_wait_s=0.001).fleet(member(A, waiting=1))
    for number in range(1, 5):
        bench.run(number)
    for number in range(1, 5):
        bench.give(A, rows((number, 1, 3, 70), finish=FinishReason.STOP), at_s=100.0 * number)
    assert only(bench.give(client("c"), submit(), at_s=400.0), SubmitRejected).code is RejectionCode.FULL
    bench.view(member(A, waiting=0))
    assert only(bench.give(client("c"), submit(), at_s=400.0), Place)


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ({"tokens": ()}, RejectionCode.INVALID),
        ({"max_tokens": 0}, RejectionCode.INVALID),
        ({"max_tokens": -1}, RejectionCode.INVALID),
        ({"timeout_s": 0.0}, RejectionCode.INVALID),
        ({"timeout_s": float("nan")}, RejectionCode.INVALID),
        ({"timeout_s": float("inf")}, RejectionCode.INVALID),
        ({"max_tokens": 998}, RejectionCode.TOO_LONG),
        ({"tokens": range(1000), "max_tokens": None}, RejectionCode.TOO_LONG),
    ],
)
def test_bad_requests_cost_no_work(overrides: dict[str, Any], code: RejectionCode) -> None:
    bench = Bench().fleet(member(A))
    sent = bench.give(client("c"), submit(**overrides))
    assert only(sent, SubmitRejected).code is code
    assert messages(sent, Place) == []
    assert bench.core.report() == DispatcherReport(refused_total=1)


def test_the_models_limit_holds_before_any_instance_is_known() -> None:
    bench = Bench(max_positions=6)
    assert only(bench.give(client("c"), submit()), SubmitRejected).code is RejectionCode.TOO_LONG
    assert messages(bench.give(client("d"), submit(max_tokens=3)), Admitted)[0].request == "req-2a-1"


# --- the fleet ---


def test_in_an_outage_new_requests_are_refused_and_queued_ones_end() -> None:
    bench = Bench(admission__unavailable_after_s=10.0, outage__give_up_after_s=60.0)
    bench.give(client("early"), submit(), at_s=5.0)
    assert messages(bench.give(client("later"), submit(), at_s=14.9), Admitted) != []
    rejected = only(bench.give(client("late"), submit(), at_s=15.0), SubmitRejected)
    assert (rejected.code, rejected.retry_after_s) == (RejectionCode.UNAVAILABLE, 10.0)
    sent = bench.fire(OutageTimeout)
    assert bench.now_s == 65.0
    assert [delta.finish for delta in messages(sent, Delta)] == [FinishReason.ERROR, FinishReason.ERROR]


def test_the_timer_of_an_earlier_outage_ends_nothing() -> None:
    bench = Bench().fleet(member(A))
    bench.give(A, Gone())
    bench.give(client("c"), submit())
    assert bench.fire(OutageTimeout) == []  # the drought before the first view
    assert bench.core.report().queued == 1
    assert messages(bench.fire(OutageTimeout), Delta) != []


def test_old_views_change_nothing() -> None:
    bench = Bench().fleet(member(A))
    assert bench.give(MONITOR, FleetView(1, (member(A, suspect=True),))) == []
    assert bench.give(Address("monitor", "m", 6), FleetView(99, (member(A, suspect=True),))) == []
    assert target(bench.give(client("c"), submit()), Place) == [A]
    assert bench.core.report().stale_total == 2


def test_a_new_monitor_starts_its_own_versions() -> None:
    bench = Bench()
    bench.fleet(member(A))
    bench.give(Address("monitor", "m", 8), FleetView(1, (member(A, suspect=True),)))
    assert messages(bench.give(client("c"), submit()), Place) == []


def test_a_replaced_monitor_is_not_heard_from_the_stream_of_its_successor_on() -> None:
    """It slept and wakes; its successor has said nothing since its stream broke and was opened again."""
    bench, newer = Bench().fleet(member(A)), MONITOR._replace(incarnation=MONITOR.incarnation + 1)
    bench.give(newer, Joined())
    bench.give(MONITOR, FleetView(99, (member(A, suspect=True),)))
    assert bench.core.fleet.serving == [A]
    bench.give(newer, Gone("keepalive timeout"))
    bench.give(MONITOR, FleetView(100, (member(A, suspect=True),)))
    assert bench.core.fleet.serving == []


def test_a_monitor_that_is_gone_leaves_its_last_view() -> None:
    bench = Bench().fleet(member(A))
    bench.give(MONITOR, Joined())
    bench.give(MONITOR, Gone())
    assert target(bench.give(client("c"), submit()), Place) == [A]


def test_members_that_left_the_view_get_nothing_new_and_keep_what_they_run() -> None:
    bench = Bench().fleet(member(A), member(B, free_slots=10))
    bench.run("c")
    bench.view(base_version=1, removed=(A,))
    assert target(bench.give(client("d"), submit()), Place) == [B]
    assert bench.give(A, rows((1, 1, 3, 70))) == [Send(client("c"), Delta(i32([70])))]


def test_it_reports_at_once_and_every_half_second_while_a_monitor_listens() -> None:
    bench = Bench()
    assert bench.give(MONITOR, Joined(), at_s=1.0) == [Send(MONITOR, DispatcherReport())]
    assert target(bench.fire(ReportDue), DispatcherReport) == [MONITOR]
    assert bench.now_s == 1.5
    bench.give(MONITOR, Gone())
    assert bench.fire(ReportDue) == []
    bench.give(MONITOR, Joined())
    bench.give(MONITOR, Joined())
    assert bench.fire(ReportDue) == []  # a newer timer runs
    assert target(bench.fire(ReportDue), DispatcherReport) == [MONITOR]


def test_it_remembers_where_the_monitor_answers() -> None:
    bench = Bench()
    assert bench.give(Address("etcd", ""), MembersReset((Member(MONITOR, "host:9", "n", 1),))) == []
    assert bench.core.directory.monitor_endpoint == "host:9"
    bench.give(Address("etcd", ""), MemberDown(MONITOR))
    assert bench.core.directory.monitor_endpoint == ""


def test_what_it_does_not_know_is_ignored() -> None:
    bench = Bench()
    assert bench.give(A, "nonsense") == []
    assert bench.give(A, Tokens(i64(), i32(), i64(), i32(), f32(), i8())) == []
    assert bench.give(SELF, Gone()) == []
