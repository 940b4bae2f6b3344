"""Quotas and requests that another dispatcher admitted: these go on and are counted; what only claims so is new."""

from typing import Any

import pytest

from dunlin.effects import Address, Send
from dunlin.messages.dispatch import Adopt, NotHeld, Place
from dunlin.messages.door import Delta, Quota, Quotas, RejectionCode, Submit, SubmitRejected
from dunlin.messages.lifecycle import Admitted
from dunlin.messages.types import FinishReason, i32
from tests.services.dispatcher.adoption_factories import KEY, Bench, adopted, named, resumed
from tests.services.dispatcher.factories import A, client, member, messages, only, rows, submit


def limited(**limits: Any) -> Bench:
    """Tenant "t" has a request that runs as number 1."""
    bench = Bench(max_positions=100).fleet(member(A))
    bench.give(Address("dispatcher", "d", 0x2A), Quotas((Quota("t", **limits),)))
    bench.run("own", tenant="t")
    return bench


def check(bench: Bench) -> None:
    quotas = bench.core.quotas
    quotas.check_integrity()
    assert list(quotas._reservations) == list(bench.core.journal._requests)


FULL = [{"running": 1}, {"requests_per_minute": 1}, {"tokens_per_minute": 9}]
RESUMED = [resumed(tenant="t"), named(max_tokens=6)]


@pytest.mark.parametrize("again", RESUMED, ids=["by its id", "by its idempotency key"])
@pytest.mark.parametrize("limits", FULL, ids=str)
def test_what_an_instance_runs_goes_on_beyond_the_quota_and_counts(limits: dict[str, int], again: Submit) -> None:
    bench = limited(**limits)
    adopt = only(bench.give(client("c"), again), Adopt)
    sent = bench.give(A, adopted(72, request=adopt.request, key=KEY))
    assert sent == [Send(client("c"), Admitted(KEY)), Send(client("c"), Delta(i32([72])))]
    check(bench)
    bench.give(A, rows((1, 1, 3, 9), finish=FinishReason.STOP))
    refused = only(bench.give(client("new"), submit(tenant="t")), SubmitRejected)
    assert refused.code is RejectionCode.QUOTA, "the one that came from elsewhere counts"


@pytest.mark.parametrize("again", RESUMED, ids=["by its id", "by its idempotency key"])
@pytest.mark.parametrize("limits", FULL, ids=str)
def test_what_no_instance_runs_is_a_new_request(limits: dict[str, int], again: Submit) -> None:
    bench = limited(**limits)
    before = bench.core.quotas.usage("t", 0.0)
    adopt = only(bench.give(client("c"), again), Adopt)
    sent = bench.give(A, NotHeld(adopt.request, 1))
    assert only(sent, SubmitRejected).code is RejectionCode.QUOTA
    assert not messages(sent, Place)
    check(bench)
    assert bench.core.quotas.usage("t", 0.0) == before, "it cost nothing"
    assert len(bench.core.journal) == 1
    report = bench.core.report()
    assert (report.refused_total, report.cancelled_total) == (1, 0)


def test_what_no_instance_runs_is_taken_if_there_is_room_by_then() -> None:
    bench = limited(running=1, tokens_per_minute=18)
    adopt = only(bench.give(client("c"), named()), Adopt)
    bench.give(A, rows((1, 1, 3, 9), finish=FinishReason.STOP))
    assert only(bench.give(A, NotHeld(adopt.request, 1)), Place).request == adopt.request
    check(bench)
    assert only(bench.give(client("new"), submit(tenant="t")), SubmitRejected).code is RejectionCode.QUOTA


def test_one_that_fitted_is_not_looked_at_again() -> None:
    bench = limited(running=2)
    fitted = only(bench.give(client("c"), named()), Adopt)
    beyond = only(bench.give(client("d"), resumed(tenant="t")), Adopt)
    bench.give(A, adopted(request=beyond.request))
    assert only(bench.give(A, NotHeld(fitted.request, 1)), Place).request == fitted.request
    check(bench)


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"running": 1}, 2),
        ({"requests_per_minute": 1}, 2),
        ({"tokens_per_minute": 9}, 2),
        ({"tokens_per_minute": 20}, 4),
    ],
    ids=str,
)
def test_no_more_is_let_in_beyond_the_quota_than_the_quota(limits: dict[str, int], most: int) -> None:
    bench, refused = limited(**limits), list[SubmitRejected]()
    for number in range(5):
        refused += messages(bench.give(client(number), resumed(tenant="t", key=f"req-9-{number}")), SubmitRejected)
        check(bench)
    assert {one.code for one in refused} == {RejectionCode.QUOTA}
    assert len(bench.core.journal) == most


def test_a_smaller_max_tokens_of_the_tenant_does_not_end_what_runs() -> None:
    bench = limited(max_tokens=4)
    assert messages(bench.give(client("x"), submit(tenant="t", max_tokens=6)), SubmitRejected)
    adopt = only(bench.give(client("c"), resumed(tenant="t")), Adopt)
    assert messages(bench.give(A, adopted(72, request=adopt.request)), Delta)
    adopt = only(bench.give(client("d"), resumed(tenant="t", key="req-9-1")), Adopt)
    refused = only(bench.give(A, NotHeld(adopt.request, 1)), SubmitRejected)
    assert refused.code is RejectionCode.INVALID


def test_an_adopted_request_that_generates_more_than_was_reserved_is_charged_with_it() -> None:
    """Its first dispatcher let it generate more: the limit of a request without one is each dispatcher's own."""
    bench = limited(tokens_per_minute=60)
    adopt = only(bench.give(client("c"), named(max_tokens=4)), Adopt)
    bench.give(A, adopted(*range(70, 79), request=adopt.request, max_tokens=10))
    bench.give(A, rows((adopt.request, 1, 12, 79), finish=FinishReason.LENGTH))
    tokens = bench.core.quotas.usage("t", 0.0).tokens
    assert tokens is not None
    assert tokens.remaining == 60 - (3 + 4) - (3 + 10)


def test_a_tenant_that_is_gone_gets_nothing_by_resuming() -> None:
    bench = limited()
    bench.give(Address("dispatcher", "d", 0x2A), Quotas((Quota("u"),)))
    assert only(bench.give(client("c"), resumed(tenant="t")), SubmitRejected).code is RejectionCode.FORBIDDEN


def test_a_smaller_quota_makes_the_debt_smaller() -> None:
    bench = limited(tokens_per_minute=20)
    for number in range(3):
        bench.give(client(number), resumed(tenant="t", key=f"req-9-{number}"))
    bench.give(Address("dispatcher", "d", 0x2A), Quotas((Quota("t", tokens_per_minute=6),)))
    check(bench)
    refused = only(bench.give(client("new"), submit([5], tenant="t", max_tokens=5)), SubmitRejected)
    assert refused.retry_after_s == 120.0, "never more than two minutes"
