"""A full queue and requests that may run somewhere already: these are asked about first, and bounded as all others."""

from typing import Any

import pytest

from dunlin.effects import Address, Gone, Send
from dunlin.messages.dispatch import Adopt, NotHeld, Place
from dunlin.messages.door import Delta, Quota, Quotas, RejectionCode, SubmitRejected
from dunlin.messages.lifecycle import Admitted
from dunlin.messages.types import i32
from services.dispatcher.requests.timers import AdoptionQueryAnswered
from tests.services.dispatcher.adoption_factories import KEY, Bench, adopted, named, resumed
from tests.services.dispatcher.factories import A, B, client, member, messages, only, submit


def busy(waiting: int = 1, **config: Any) -> Bench:
    """One instance that takes nothing more, and requests that wait here."""
    bench = Bench(**config).fleet(member(A, free_slots=0, waiting=16))
    for number in range(waiting):
        bench.give(client(f"waits {number}"), submit())
    return bench


def slow(bench: Bench) -> Bench:
    """A turn comes later than may be waited for."""
    bench.core._admission.wait_estimate.interval_s = 100.0
    return bench


BUSY = [lambda: busy(admission__max_queued=1), lambda: slow(busy())]


@pytest.mark.parametrize("make", BUSY, ids=["full", "slow"])
def test_a_retry_of_a_request_that_runs_needs_no_room_in_the_queue(make: Any) -> None:
    bench = make()
    assert only(bench.give(client("new"), submit()), SubmitRejected).code is RejectionCode.FULL
    adopt = only(bench.give(client("c"), named()), Adopt)
    sent = bench.give(A, adopted(70, request=adopt.request))
    assert sent == [Send(client("c"), Admitted(KEY)), Send(client("c"), Delta(i32([70])))]


@pytest.mark.parametrize("make", BUSY, ids=["full", "slow"])
def test_a_name_that_no_instance_knows_is_refused_as_a_new_request(make: Any) -> None:
    bench = make()
    bench.give(Address("dispatcher", "d", 0x2A), Quotas((Quota("t", requests_per_minute=9, tokens_per_minute=99),)))
    before = bench.core.quotas.usage("t", 0.0)
    adopt = only(bench.give(client("c"), named()), Adopt)
    assert only(bench.give(A, NotHeld(adopt.request, 1)), SubmitRejected).code is RejectionCode.FULL
    assert (bench.core.journal.queued, len(bench.core.journal)) == (1, 1)
    assert bench.core.quotas.usage("t", 0.0) == before, "it cost nothing"


def test_a_resumed_request_that_no_instance_runs_finds_room_nevertheless() -> None:
    bench = busy(admission__max_queued=1)
    adopt = only(bench.give(client("c"), resumed()), Adopt)
    assert bench.give(A, NotHeld(adopt.request, 1)) == [Send(client("c"), Admitted(KEY))]


def test_a_burst_of_names_fills_the_queue_and_no_more() -> None:
    bench = busy(0, admission__max_queued=2)
    refused = [messages(bench.give(client(n), named(idempotency=f"{n}/0")), SubmitRejected) for n in range(9)]
    assert [bool(one) for one in refused] == [False] * 4 + [True] * 5
    for request in list(bench.core.journal):
        bench.give(A, NotHeld(request.number, 1))
    assert (bench.core.journal.queued, bench.core.journal.adopting) == (2, 0)


def test_names_that_are_known_to_be_new_together_are_dispatched_one_after_the_other() -> None:
    bench = Bench(admission__max_queued=2).fleet(member(A), member(B))
    for number in range(4):
        bench.give(client(number), named(idempotency=f"{number}/0"))
        bench.give(A, NotHeld(number + 1, 1))
    bench.give(B, Gone("killed"))
    sent = [bench.fire(AdoptionQueryAnswered) for _ in range(4)]
    assert [(len(messages(one, Place)), len(messages(one, SubmitRejected))) for one in sent] == [(1, 0)] * 4
