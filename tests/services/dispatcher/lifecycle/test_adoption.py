"""The dispatcher's core: requests that began at another one, at exact times."""

from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined, Send
from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import Accepted, Adopt, AdoptedElsewhere, Cancel, NotHeld, Place
from dunlin.messages.door import CancelById, CancelResult, Delta, RejectionCode, SubmitRejected
from dunlin.messages.lifecycle import Admitted, CallOrigin
from dunlin.messages.types import FinishReason, i32
from services.dispatcher.requests.request import RequestState
from services.dispatcher.requests.timers import (
    AdoptionQueryAnswered,
    AdoptionQueryRetry,
    AdoptionQueryTimeout,
    DeadlineDue,
)
from tests.services.dispatcher import factories
from tests.services.dispatcher.adoption_factories import KEY, Bench, adopted, named, resumed
from tests.services.dispatcher.factories import A, B, client, member, messages, only, rows, submit, target


def asking(**config: Any) -> factories.Bench:
    """Two instances; a client came with the key of a request that this dispatcher does not know."""
    bench = Bench(**config).fleet(member(A), member(B))
    bench.give(client("c"), resumed())
    return bench


def state(bench: factories.Bench) -> RequestState:
    request = bench.core.journal.get(1)
    assert request is not None
    return request.state


def test_every_instance_is_queried_with_the_proof_and_nothing_is_dispatched_yet() -> None:
    bench = Bench().fleet(member(A), member(B))
    sent = bench.give(client("c"), resumed(tenant="t"))
    assert target(sent, Adopt) == [A, B]
    adopt = messages(sent, Adopt)[0]
    assert (adopt.request, adopt.attempt, adopt.key, adopt.length, adopt.received) == (1, 1, KEY, 5, 2)
    assert adopt.chain == prefix_hash.chain_of(prefix_hash.chain_root("t", ""), [5, 6, 7, 70, 71], 5)
    assert len(sent) == 2
    assert state(bench) is RequestState.ADOPTING


def test_the_instance_that_runs_it_is_adopted_and_the_client_gets_the_missing_tokens() -> None:
    bench = asking()
    sent = bench.give(A, adopted(72, 73))
    assert sent == [Send(client("c"), Admitted(KEY)), Send(client("c"), Delta(i32([72, 73])))]
    assert bench.give(A, rows((1, 1, 7, 74))) == [Send(client("c"), Delta(i32([74])))]
    assert bench.give(A, rows((1, 1, 8, 75), finish=FinishReason.LENGTH)) == [
        Send(client("c"), Delta(i32([75]), finish=FinishReason.LENGTH))
    ]
    report = bench.core.report()
    assert (report.adopted_total, report.finished_total, report.running) == (1, 1, 0)


@pytest.mark.parametrize(("suspicion", "left"), [(2, 2), (1, 1), (0, 0)])
def test_what_the_request_is_suspected_of_is_known_to_the_next_attempt(suspicion: int, left: int) -> None:
    bench = asking()
    bench.give(A, adopted(72, suspicion=suspicion, trial_stop=6))
    assert only(bench.give(A, Gone("killed")), Place).suspicion == left


def test_an_answer_that_ended_is_delivered_with_its_end() -> None:
    bench = asking()
    sent = bench.give(A, adopted(72, finish=FinishReason.STOP))
    assert sent[1] == Send(client("c"), Delta(i32([72]), finish=FinishReason.STOP))
    assert len(bench.core.journal) == 0


def test_the_attempt_of_a_second_holder_is_cancelled() -> None:
    bench = asking()
    bench.give(A, adopted(72))
    sent = bench.give(B, adopted())
    assert [(cancel.request, cancel.attempt) for cancel in messages(sent, Cancel)] == [(1, 1)]
    assert target(sent, Cancel) == [B]
    assert bench.give(B, adopted(72, finish=FinishReason.LENGTH)) == []  # nothing to stop there


def test_a_request_that_no_instance_runs_is_rebuilt_from_the_clients_tokens() -> None:
    bench = asking()
    assert bench.give(A, NotHeld(1, 1)) == []
    sent = bench.give(B, NotHeld(1, 1))
    assert sent[0] == Send(client("c"), Admitted(KEY))
    place = only(sent, Place)
    assert (list(place.tokens), place.prompt_tokens, place.attempt, place.key) == ([5, 6, 7, 70, 71], 3, 2, KEY)
    assert place.why is not None
    assert place.why.rejected[0].option == "adopt"
    bench.give(A, Accepted(1, 2, 1))
    assert bench.give(A, rows((1, 2, 5, 72))) == [Send(client("c"), Delta(i32([72])))]


def test_a_resumed_request_without_a_limit_goes_where_all_that_it_has_fits() -> None:
    """An instance that holds its prompt and not its answer would set a limit that is exceeded already."""
    small = member(A, capacity_slots=400, free_slots=400, max_positions=400)
    bench = Bench().fleet(small, member(B, free_slots=0, waiting=2, waiting_tokens=9000))
    bench.give(client("c"), resumed((70,) * 400, max_tokens=None))
    bench.give(A, NotHeld(1, 1))
    sent = bench.give(B, NotHeld(1, 1))
    assert target(sent, Place) == [B]
    assert only(sent, Place).max_tokens == 997


def test_a_resumed_request_without_a_limit_that_fits_nowhere_ends_at_once() -> None:
    bench = Bench().fleet(member(A, capacity_slots=8, free_slots=8, max_positions=8))
    bench.give(client("c"), resumed(tuple(range(70, 80)), max_tokens=None))
    sent = bench.give(A, NotHeld(1, 1))
    assert (messages(sent, Place), only(sent, Delta).finish) == ([], FinishReason.TOO_LONG)


def test_an_adoption_that_comes_late_is_stopped() -> None:
    bench = asking()
    bench.give(A, NotHeld(1, 1))
    bench.give(B, NotHeld(1, 1))
    sent = bench.give(B, adopted(72))
    assert [(cancel.request, cancel.attempt) for cancel in messages(sent, Cancel)] == [(1, 1)]
    assert messages(sent, Delta) == []


def test_an_instance_that_is_gone_is_not_waited_for() -> None:
    bench = asking()
    bench.give(A, NotHeld(1, 1))
    assert bench.give(B, Gone("killed")) == []
    assert len(messages(bench.fire(AdoptionQueryAnswered), Place)) == 1


def test_an_instance_that_joins_at_once_after_one_that_is_gone_is_awaited() -> None:
    bench = asking()
    bench.give(A, NotHeld(1, 1))
    bench.give(B, Gone("killed"))
    assert target(bench.give(B, Joined()), Adopt) == [B]
    assert bench.fire(AdoptionQueryAnswered) == []
    assert bench.give(B, adopted(72))[0] == Send(client("c"), Admitted(KEY))


def test_an_instance_that_joins_meanwhile_is_queried_and_a_known_one_is_awaited() -> None:
    bench = Bench().fleet(member(A))
    bench.view(member(A), member(B))
    bench.give(client("c"), resumed())
    assert bench.give(A, NotHeld(1, 1)) == []
    assert target(bench.give(B, Joined()), Adopt) == [B]
    assert bench.give(B, adopted(72))[0] == Send(client("c"), Admitted(KEY))


def test_an_instance_that_comes_back_meanwhile_is_awaited_again() -> None:
    bench = asking()
    bench.give(A, Gone("the stream ended"))
    assert target(bench.give(A, Joined()), Adopt) == [A]
    assert bench.give(B, NotHeld(1, 1)) == []
    assert bench.give(A, adopted(72))[0] == Send(client("c"), Admitted(KEY))


def test_a_suspect_is_queried_and_not_awaited() -> None:
    bench = asking()
    bench.give(A, NotHeld(1, 1))
    bench.view(member(A), member(B, suspect=True))
    assert target(bench.fire(AdoptionQueryAnswered), Place) == [A]


def test_without_a_serving_instance_a_query_waits_until_its_timeout() -> None:
    bench = Bench(adoption__ask_timeout_s=2.0)
    bench.give(client("c"), resumed())
    assert state(bench) is RequestState.ADOPTING
    assert bench.fire(AdoptionQueryTimeout) == [Send(client("c"), Admitted(KEY))]
    assert bench.now_s == 2.0
    assert state(bench) is RequestState.QUEUED
    bench.fleet(member(A))
    assert state(bench) is RequestState.DISPATCHED
    assert len(messages(bench.give(A, adopted(72)), Cancel)) == 1, "it is rebuilt since"


def test_a_client_that_leaves_during_the_query_leaves_nothing_behind() -> None:
    bench = asking()
    bench.give(client("c"), Gone())
    assert len(bench.core.journal) == 0
    assert target(bench.give(A, adopted(72)), Cancel) == [A]
    assert bench.give(B, NotHeld(1, 1)) == []
    assert bench.fire(AdoptionQueryTimeout) == []


def test_an_instance_that_joins_later_is_not_asked_about_a_client_that_left() -> None:
    bench = asking()
    bench.give(client("c"), Gone())
    bench.fire(AdoptionQueryTimeout)
    assert target(bench.give(B, Joined()), Adopt) == []


OTHER = Address("dispatcher", "e", 99)


def test_a_request_adopted_elsewhere_is_not_dispatched_again_and_ends_with_its_client() -> None:
    bench = Bench().fleet(member(A), member(B))
    bench.run("c")
    assert bench.give(A, AdoptedElsewhere(1, 1, OTHER)) == []
    assert state(bench) is RequestState.ADOPTING
    assert bench.give(A, AdoptedElsewhere(1, 1, OTHER)) == []
    assert bench.core.report().stale_total == 1
    assert bench.give(client("c"), Gone()) == []
    assert len(bench.core.journal) == 0
    assert bench.fire(AdoptionQueryRetry) == []


def test_a_request_adopted_elsewhere_is_adopted_back_while_it_has_readers_here() -> None:
    bench = Bench().fleet(member(A))
    place = bench.run("c", max_tokens=6)
    bench.give(A, rows((1, 1, 3, 70)))
    bench.give(A, AdoptedElsewhere(1, 1, OTHER), 5.0)
    adopt = only(bench.fire(AdoptionQueryRetry), Adopt)
    assert bench.now_s == 6.0
    assert (adopt.attempt, adopt.key, adopt.length, adopt.received) == (2, place.key, 4, 1)
    told = bench.give(A, adopted(71, 72, key=place.key, attempt=2))
    assert told == [Send(client("c"), Delta(i32([71, 72])))]
    bench.give(A, AdoptedElsewhere(1, 2, OTHER))
    bench.fire(AdoptionQueryRetry)
    again = only(bench.give(A, NotHeld(1, 3)), Place)
    assert (again.attempt, list(again.tokens)) == (4, [5, 6, 7, 70, 71, 72])


def test_a_request_adopted_elsewhere_without_readers_here_is_forgotten() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), named())
    bench.give(A, NotHeld(1, 1))
    bench.give(client("c"), Gone())
    bench.give(A, AdoptedElsewhere(1, 2, OTHER))
    assert len(bench.core.journal) == 0
    assert bench.core.report().cancelled_total == 1


def test_a_deadline_ends_a_request_during_its_query() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), resumed(timeout_s=1.0))
    assert only(bench.fire(DeadlineDue), Delta).finish is FinishReason.DEADLINE
    assert len(bench.core.journal) == 0


def test_a_request_that_came_back_is_found_by_its_first_name() -> None:
    bench = asking()
    bench.give(A, adopted())
    sent = bench.give(client("tool"), CancelById(KEY))
    assert CancelResult(KEY, True) in [send.message for send in sent]


def test_a_client_that_comes_back_to_its_own_dispatcher_reads_on() -> None:
    bench = Bench().fleet(member(A))
    place = bench.run("c", max_tokens=6)
    bench.give(A, rows((1, 1, 3, 70), (1, 1, 4, 71)))
    sent = bench.give(client("c'"), resumed((70,), key=place.key))
    assert sent == [Send(client("c'"), Admitted(place.key)), Send(client("c'"), Delta(i32([71])))]
    assert bench.give(client("c"), Gone()) == []
    assert bench.give(A, rows((1, 1, 5, 72))) == [Send(client("c'"), Delta(i32([72])))]
    assert target(bench.give(client("c'"), Gone()), Cancel) == [A]


def test_what_is_behind_its_client_gives_way() -> None:
    bench = Bench().fleet(member(A))
    place = bench.run("c", max_tokens=6)
    bench.give(A, rows((1, 1, 3, 70)))
    sent = bench.give(client("c'"), resumed((70, 71), key=place.key))
    assert only(sent, Delta).finish is FinishReason.CANCELLED
    assert [(cancel.request, cancel.attempt) for cancel in messages(sent, Cancel)] == [(1, 1)]
    assert only(sent, Adopt).request == 2


@pytest.mark.parametrize("wrong", [{"tokens": (5, 6, 8)}, {"received": i32([9])}, {"tenant": "u"}])
def test_a_stranger_gets_nothing_of_a_running_request(wrong: dict[str, Any]) -> None:
    bench = Bench().fleet(member(A))
    place = bench.run("c", max_tokens=6)
    bench.give(A, rows((1, 1, 3, 70)))
    sent = bench.give(client("x"), resumed(**{"received": i32([70]), "key": place.key, **wrong}))
    assert only(sent, SubmitRejected).code is RejectionCode.INVALID
    assert len(sent) == 1


def test_a_made_up_name_does_not_get_in_the_way_of_a_real_one() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("x"), resumed((), key="req-2a-2"))
    bench.give(A, NotHeld(1, 1))
    assert only(bench.give(client("c"), submit()), Place).key == "req-2a-3"


def test_a_full_queue_admits_requests_that_were_admitted_elsewhere() -> None:
    bench = Bench(admission__max_queued=1)
    bench.give(client("a"), submit())
    assert only(bench.give(client("b"), submit()), SubmitRejected).code is RejectionCode.FULL
    assert bench.give(client("c"), resumed()) == []
    bench.fire(AdoptionQueryTimeout)
    assert only(bench.give(client("d"), resumed(key="req-7-a")), SubmitRejected).code is RejectionCode.FULL


# --- idempotency keys ---


def test_an_idempotent_request_is_queried_before_it_is_dispatched() -> None:
    bench = Bench().fleet(member(A))
    sent = bench.give(client("c"), named())
    adopt = only(sent, Adopt)
    assert (adopt.key, adopt.idempotency, adopt.tenant, adopt.digest, adopt.received) == ("", "k/0", "t", b"d", 0)
    sent = bench.give(A, NotHeld(1, 1))
    assert sent[0] == Send(client("c"), Admitted("req-2a-1"))
    place = only(sent, Place)
    assert (place.idempotency, place.digest) == ("k/0", b"d")
    assert place.why is not None
    assert place.why.rejected == ()


def test_found_elsewhere_it_keeps_its_first_name() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), named())
    bench.give(client("d"), named())  # joins while it is asked for
    sent = bench.give(A, adopted(70, key=KEY))
    assert sent == [
        Send(client("c"), Admitted(KEY)),
        Send(client("d"), Admitted(KEY)),
        Send(client("c"), Delta(i32([70]))),
        Send(client("d"), Delta(i32([70]))),
    ]
    assert bench.core.report().joined_total == 1


def test_a_name_that_means_something_else_elsewhere_is_refused() -> None:
    bench = Bench().fleet(member(A), member(B))
    bench.give(client("c"), named())
    bench.give(client("d"), named())
    sent = bench.give(A, NotHeld(1, 1, conflict=True))
    assert [(send.to, type(send.message)) for send in sent] == [
        (client("c"), SubmitRejected),
        (client("d"), SubmitRejected),
    ]
    assert only(sent[:1], SubmitRejected).code is RejectionCode.CONFLICT
    assert len(bench.core.journal) == 0


def test_its_limit_is_that_of_the_dispatcher_where_it_began() -> None:
    bench = asking()
    bench.give(A, adopted(72, max_tokens=9))
    assert only(bench.give(A, Gone("killed")), Place).max_tokens == 9


def test_the_tokens_that_come_with_the_answer_are_counted() -> None:
    bench = asking()
    bench.give(A, adopted(72, 73))
    assert bench.core.report().tokens_total == 2


def test_a_client_that_lacks_nothing_gets_no_empty_delta() -> None:
    bench = asking()
    assert bench.give(A, adopted()) == [Send(client("c"), Admitted(KEY))]


def test_its_admission_here_names_the_call_that_it_came_with() -> None:
    bench = factories.Bench().fleet(member(A))
    origin = CallOrigin("http", "chat")
    bench.give(client("c"), resumed(trace="00-01-02-01", origin=origin))
    admitted = only(bench.give(A, adopted(72)), Admitted)
    assert (admitted.trace, admitted.origin) == ("00-01-02-01", origin)
    assert admitted.why is not None
    assert {figure.name: figure.value for figure in admitted.why.figures} == {"tokens": 6}


@pytest.mark.parametrize("end", ["refused", "left"])
def test_an_instance_that_joins_is_not_asked_about_a_request_that_has_ended(end: str) -> None:
    bench = Bench().fleet(member(A), member(B))
    bench.give(client("c"), named())
    if end == "refused":
        bench.give(A, NotHeld(1, 1, conflict=True))
    else:
        bench.give(client("tool"), CancelById("req-2a-1"))
        bench.view(member(A), member(B))
        bench.fire(AdoptionQueryAnswered)
    assert bench.give(Address("instance", "c", 13), Joined()) == []


def test_an_answer_that_ended_elsewhere_is_replayed_with_its_end() -> None:
    bench = Bench().fleet(member(A))
    bench.give(client("c"), named())
    bench.give(A, adopted(70, finish=FinishReason.LENGTH))
    sent = bench.give(client("d"), named())
    assert sent == [Send(client("d"), Admitted(KEY)), Send(client("d"), Delta(i32([70]), finish=FinishReason.LENGTH))]


def test_a_client_that_has_all_tokens_is_told_that_it_ended() -> None:
    bench = asking()
    sent = bench.give(A, adopted(finish=FinishReason.LENGTH))
    assert sent == [Send(client("c"), Admitted(KEY)), Send(client("c"), Delta(i32(), finish=FinishReason.LENGTH))]


def test_a_second_holder_where_it_ended_has_nothing_to_stop() -> None:
    bench = asking()
    bench.give(A, adopted(72))
    assert bench.give(B, adopted(72, finish=FinishReason.LENGTH)) == []


def test_the_timeout_of_a_query_that_was_answered_ends_nothing() -> None:
    bench = asking()
    bench.give(A, adopted(72))
    assert bench.fire(AdoptionQueryTimeout) == []
    assert state(bench) is RequestState.RUNNING
