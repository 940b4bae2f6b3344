"""Each phase of a request is told once, with its reason, whatever becomes of the request."""

from dunlin.effects import Gone, Joined, sends
from dunlin.messages.dispatch import Adopted, Place, Refusal, Refused, Returned
from dunlin.messages.door import Abort, RefusedAtDoor, Submit
from dunlin.messages.lifecycle import Admitted, CallOrigin, Closed, FirstToken
from dunlin.messages.types import FinishReason, Why, i32
from services.dispatcher.lifecycle.events import REFUSAL_BURST, REFUSAL_INTERVAL_S
from services.dispatcher.requests.timers import DeadlineDue, OutageTimeout
from tests.services.dispatcher.factories import A, B, Bench, client, member, messages, only, rows, submit, target

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def figures(why: Why | None) -> dict[str, float]:
    assert why is not None
    return {figure.name: figure.value for figure in why.figures}


def closed(bench: Bench) -> Closed:
    return only(bench.events, Closed)


def cause(bench: Bench) -> str:
    why = closed(bench).why
    assert why is not None
    return why.chosen


def test_admission_says_what_the_queue_was_like_and_keeps_the_clients_trace() -> None:
    bench = Bench().fleet(member(A))
    sent = bench.give(client("c"), submit(trace=TRACE))
    admitted = only(sent, Admitted)
    assert (admitted.request, admitted.trace) == ("req-2a-1", TRACE)
    assert figures(admitted.why) == {"prompt_tokens": 3, "queued": 1, "placeable_instances": 1}
    assert only(sent, Place).trace == TRACE


def test_the_first_token_of_an_attempt_is_one_event() -> None:
    bench = Bench().fleet(member(A), member(B))
    (holder,) = target(bench.give(client("c"), submit(), at_s=1.0), Place)
    bench.give(holder, rows((1, 1, 3, 70)), at_s=1.25)
    first = only(bench.events, FirstToken)
    assert (first.request, first.attempt, first.instance) == ("req-2a-1", 1, holder)
    assert figures(first.why) == {"first_token_s": 0.25, "tokens_before": 0}
    bench.give(holder, rows((1, 1, 4, 71)))
    assert bench.events == []
    (other,) = target(bench.give(holder, Returned(1, 1, Why("engine lost", "gone"))), Place)
    bench.give(other, rows((1, 2, 5, 72)), at_s=2.0)
    assert (only(bench.events, FirstToken).attempt, only(bench.events, FirstToken).instance) == (2, other)
    assert figures(only(bench.events, FirstToken).why) == {"first_token_s": 1.0, "tokens_before": 2}


def test_the_last_token_closes_it_after_it_was_delivered() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c", trace=TRACE)
    bench.give(A, rows((1, 1, 3, 70), finish=FinishReason.STOP), at_s=3.0)
    assert [type(effect.message).__name__ for effect in sends(bench.last)] == ["FirstToken", "Delta", "Closed"]
    end = closed(bench)
    assert (end.request, end.finish, end.tokens, end.trace) == ("req-2a-1", FinishReason.STOP, 1, TRACE)
    assert figures(end.why) == {"attempts": 1, "lost_in_a_row": 0, "seconds": 3.0}
    assert end.why is not None
    assert (end.why.chosen, end.why.rejected) == ("stop", ())


def test_a_queued_request_that_its_deadline_ends_leaves_a_record() -> None:
    bench = Bench()
    bench.give(client("c"), submit(timeout_s=2.0))
    bench.fire(DeadlineDue)
    end = closed(bench)
    assert (end.finish, end.tokens) == (FinishReason.DEADLINE, 0)
    assert end.why is not None
    assert end.why.chosen == "2 s are over: 0 of 4 tokens were generated"
    assert end.why.rejected[0].reason == "it was queued"


def test_the_closed_event_says_what_ended_the_request() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    bench.give(client("c"), Gone("hung up"))
    assert closed(bench).finish is FinishReason.CANCELLED
    assert cause(bench) == "the client is gone"
    bench.run("d")
    bench.give(client("d"), Abort(FinishReason.STOP))
    assert cause(bench) == "a stop string came"


def test_each_request_that_an_outage_ends_has_a_closed_event() -> None:
    bench = Bench()
    for name in "cd":
        bench.give(client(name), submit())
    bench.fire(OutageTimeout)
    assert [told.request for told in messages(bench.events, Closed)] == ["req-2a-1", "req-2a-2"]
    assert {told.finish for told in messages(bench.events, Closed)} == {FinishReason.ERROR}


def test_a_flood_of_refusals_is_recorded_at_a_limited_rate_with_a_count() -> None:
    bench = Bench(admission__max_queued=1)
    bench.give(client("first"), submit())

    def refuse(at_s: float, name: object = "") -> list[Closed]:
        bench.give(client(f"{at_s} {name}"), submit(trace=TRACE), at_s=at_s)
        return messages(bench.events, Closed)

    at_once = [told for number in range(REFUSAL_BURST) for told in refuse(1.0, number)]
    assert [figures(told.why)["left_out_before"] for told in at_once] == [0] * REFUSAL_BURST
    assert (at_once[0].request, at_once[0].trace, at_once[0].finish) == ("", TRACE, FinishReason.ERROR)
    assert at_once[0].error == "full"
    assert refuse(1.01) == refuse(1.05) == []
    (later,) = refuse(1.0 + REFUSAL_INTERVAL_S)
    assert figures(later.why)["left_out_before"] == 2
    assert refuse(1.0 + 1.5 * REFUSAL_INTERVAL_S) == []
    bench.give(client("other"), RefusedAtDoor("too_long", "too many tokens"))
    assert only(bench.events, Closed).error == "too_long", "another kind has room of its own"
    assert bench.core.report().refused_total == REFUSAL_BURST + 5


def test_a_refused_attempt_has_no_first_token_event() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), Submit(submit().tokens, 4))
    bench.give(A, Refused(1, 1, Refusal.FULL))
    assert bench.events == []


def test_the_first_token_says_how_long_it_was_queued_here() -> None:
    bench = Bench()
    bench.give(client("c"), submit(), at_s=1.0)
    bench.give(A, Joined(), at_s=2.5)
    bench.view(member(A))
    bench.give(A, rows((1, 1, 3, 70)), at_s=4.0)
    assert only(bench.events, FirstToken).queued_s == 1.5


def test_the_first_token_of_what_another_dispatcher_dispatched_says_nothing_of_a_queue() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), submit(key="req-7-9"))
    bench.give(A, Adopted(1, 1, "req-7-9", i32(), 4))
    bench.give(A, rows((1, 1, 3, 70)))
    assert only(bench.events, FirstToken).queued_s is None


def test_a_quiet_time_saves_no_more_than_one_burst_of_records() -> None:
    bench = Bench(admission__max_queued=1, admission__unavailable_after_s=1e6)
    bench.give(client("first"), submit())
    recorded = 0
    for number in range(3 * REFUSAL_BURST):
        bench.give(client(number), submit(), at_s=1.0 if number == 0 else 1000.0)
        recorded += len(messages(bench.events, Closed))
    assert recorded == 1 + REFUSAL_BURST


def test_admissions_and_refusals_name_the_call_that_they_are_of() -> None:
    bench, origin = Bench(admission__max_queued=1), CallOrigin("http", "chat")
    assert only(bench.give(client("c"), submit(origin=origin)), Admitted).origin == origin
    bench.give(client("d"), submit(origin=origin))
    refused = only(bench.events, Closed)
    assert (refused.origin, figures(refused.why)["queued"]) == (origin, 1)


def test_refusals_that_were_left_out_are_counted_once() -> None:
    bench = Bench(admission__max_queued=1)
    bench.give(client("first"), submit())
    counts: list[float] = []
    for number in range(REFUSAL_BURST + 3):
        late = number > REFUSAL_BURST
        bench.give(client(number), submit(), at_s=number * REFUSAL_INTERVAL_S if late else 0.0)
        counts += [figures(told.why)["left_out_before"] for told in messages(bench.events, Closed)]
    assert counts == [0] * REFUSAL_BURST + [1, 0]


def test_an_end_after_losses_says_how_many_there_were_in_a_row() -> None:
    bench = Bench().fleet(member(A))
    bench.run("c")
    bench.give(A, Returned(1, 1))
    bench.give(client("c"), Abort())
    assert figures(closed(bench).why)["lost_in_a_row"] == 1


def test_what_happens_to_a_request_is_told_of_its_first_reader() -> None:
    bench = Bench().fleet(member(A))
    place = bench.run("c")
    bench.give(client("d"), submit(key=place.key))
    bench.give(A, rows((1, 1, 3, 70), finish=FinishReason.LENGTH))
    assert [(event.to, type(event.message)) for event in bench.events] == [
        (client("c"), FirstToken),
        (client("c"), Closed),
    ]
