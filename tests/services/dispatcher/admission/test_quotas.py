"""Quotas: never more than was allowed, whatever runs at once, and nothing lost of what was not used (I11)."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dunlin.effects import Address, Gone, Joined, Send
from dunlin.messages.dispatch import Place
from dunlin.messages.door import (
    Abort,
    Admitted,
    CancelById,
    CancelResult,
    Quota,
    Quotas,
    RejectionCode,
    Submit,
    SubmitRejected,
)
from dunlin.messages.types import FinishReason
from services.dispatcher.admission.quotas import RUNNING_RETRY_S, QuotaUsage, RateLimitStatus, TenantQuotas
from services.dispatcher.requests.request import RequestState
from tests.services.dispatcher.factories import A, Bench, client, member, messages, only, rows, submit


def quotas_of(**limits: Any) -> TenantQuotas:
    """One tenant, "t", from second 0 on."""
    made = TenantQuotas()
    made.replace(Quotas((Quota("t", **limits),)), 0.0)
    return made


def asked(prompt: int = 1, max_tokens: int | None = 4, **more: Any) -> Submit:
    return submit(range(prompt), max_tokens=max_tokens, tenant="t", **more)


def refused(quotas: TenantQuotas, wanted: Submit, now_s: float = 0.0) -> SubmitRejected:
    found = quotas.refusal(wanted, now_s)
    assert found is not None
    return found


def test_nothing_is_enforced_before_the_first_quotas() -> None:
    quotas = TenantQuotas()
    assert quotas.refusal(asked(10_000), 0.0) is None
    quotas.reserve(1, asked(10_000))
    quotas.refund(1, 4, 0.0)


def test_a_tenant_that_is_gone_gets_nothing_more_and_its_requests_end_well() -> None:
    quotas = quotas_of(running=1)
    quotas.reserve(1, asked())
    quotas.replace(Quotas(()), 1.0)
    assert refused(quotas, asked(), 1.0).code is RejectionCode.FORBIDDEN
    quotas.refund(1, 4, 2.0)
    quotas.replace(Quotas((Quota("t", running=1),)), 3.0)
    assert quotas.refusal(asked(), 3.0) is None


def test_requests_come_back_evenly() -> None:
    quotas = quotas_of(requests_per_minute=6)
    for number in range(6):
        assert quotas.refusal(asked(), 0.0) is None
        quotas.reserve(number, asked())
    too_soon = refused(quotas, asked(), 0.0)
    assert (too_soon.code, too_soon.retry_after_s) == (RejectionCode.QUOTA, 10.0)
    assert "'t' may use 6 requests a minute; 0 are left, 1 are needed" in too_soon.detail
    assert refused(quotas, asked(), 9.0).retry_after_s == pytest.approx(1.0)
    assert quotas.refusal(asked(), 10.0) is None
    quotas.reserve(6, asked())
    assert refused(quotas, asked(), 10.0).retry_after_s == pytest.approx(10.0)


def test_tokens_are_reserved_whole_and_the_rest_is_refunded() -> None:
    quotas = quotas_of(tokens_per_minute=60)
    quotas.reserve(1, asked(10, 40))
    assert refused(quotas, asked(10, 10), 0.0).retry_after_s == pytest.approx(10.0)
    quotas.refund(1, 5, 0.0)
    assert quotas.refusal(asked(10, 35), 0.0) is None
    assert refused(quotas, asked(10, 36), 0.0).code is RejectionCode.QUOTA


def test_what_comes_back_never_fills_more_than_a_minute() -> None:
    quotas = quotas_of(tokens_per_minute=60)
    quotas.reserve(1, asked(10, 40))
    quotas.refund(1, 0, 300.0)
    quotas.check_integrity()
    assert refused(quotas, asked(21, 40), 300.0).code is RejectionCode.INVALID
    assert quotas.refusal(asked(20, 40), 300.0) is None


def test_what_was_generated_beyond_the_reservation_is_drawn_from_what_is_there_at_the_end() -> None:
    quotas = quotas_of(tokens_per_minute=60)
    quotas.reserve(1, asked(10, 10))
    quotas.refund(1, 20, 300.0)
    assert quotas.usage("t", 300.0).tokens == RateLimitStatus(60, 50, 10.0)


def test_what_no_instance_runs_is_taken_if_enough_came_back_by_then() -> None:
    quotas = quotas_of(tokens_per_minute=60)
    quotas.reserve(1, asked(10, 50))
    named = asked(5, 5, idempotency="n/0", digest=b"d")
    assert quotas.refusal(named, 0.0) is None, "another dispatcher may have admitted it"
    quotas.reserve(2, named)
    found = quotas.on_not_held(2, named, 9.0)
    assert found is not None
    assert found.retry_after_s == pytest.approx(1.0)
    assert quotas.on_not_held(2, named, 10.0) is None
    quotas.check_integrity()


def test_what_is_owed_is_shown_as_nothing_left() -> None:
    quotas = quotas_of(requests_per_minute=60, tokens_per_minute=60)
    quotas.reserve(1, asked(10, 50))
    quotas.reserve(2, asked(10, 20, idempotency="n/0", digest=b"d"))
    assert quotas.usage("t", 0.0).tokens == RateLimitStatus(60, 0, 90.0)
    assert "; 0 are left, 5 are needed" in refused(quotas, asked(1, 4)).detail


def test_a_request_that_began_before_its_tenant_had_a_token_quota_is_not_charged() -> None:
    quotas = quotas_of()
    quotas.reserve(1, asked(10, 40))
    quotas.replace(Quotas((Quota("t", tokens_per_minute=60),)), 1.0)
    quotas.refund(1, 40, 2.0)
    assert quotas.usage("t", 2.0).tokens == RateLimitStatus(60, 60, 0.0)


def test_what_came_back_before_a_larger_quota_came_back_at_the_old_pace() -> None:
    quotas = quotas_of(tokens_per_minute=60)
    quotas.reserve(1, asked(10, 50))
    quotas.replace(Quotas((Quota("t", tokens_per_minute=120),)), 30.0)
    assert quotas.usage("t", 30.0).tokens == RateLimitStatus(120, 30, 45.0)


def test_a_call_needs_room_for_all_its_requests_to_run() -> None:
    quotas = quotas_of(running=3)
    quotas.reserve(1, asked())
    assert quotas.refusal(asked(call_requests=2, call_tokens=2), 0.0) is None
    assert refused(quotas, asked(call_requests=3, call_tokens=3)).code is RejectionCode.QUOTA


def test_usage_shows_what_is_left_and_changes_nothing() -> None:
    quotas = quotas_of(requests_per_minute=6, tokens_per_minute=120)
    assert quotas.usage("t", 0.0) == QuotaUsage(RateLimitStatus(6, 6, 0.0), RateLimitStatus(120, 120, 0.0))
    quotas.reserve(1, asked(prompt=20, max_tokens=40))
    for _ in range(2):
        assert quotas.usage("t", 5.0) == QuotaUsage(RateLimitStatus(6, 5, 5.0), RateLimitStatus(120, 70, 25.0))
    quotas.refund(1, 10, 5.0)
    assert quotas.usage("t", 5.0) == QuotaUsage(RateLimitStatus(6, 5, 5.0), RateLimitStatus(120, 100, 10.0))
    assert quotas.usage("t", 500.0) == QuotaUsage(RateLimitStatus(6, 6, 0.0), RateLimitStatus(120, 120, 0.0))
    assert quotas.usage("nobody", 0.0) == QuotaUsage()
    assert quotas_of(running=1).usage("t", 0.0) == QuotaUsage()


def test_running_requests_are_counted_until_they_end() -> None:
    quotas = quotas_of(running=2)
    quotas.reserve(1, asked())
    quotas.reserve(2, asked())
    too_many = refused(quotas, asked(), 0.0)
    assert (too_many.code, too_many.retry_after_s) == (RejectionCode.QUOTA, RUNNING_RETRY_S)
    quotas.refund(1, 4, 0.0)
    assert quotas.refusal(asked(), 0.0) is None


@pytest.mark.parametrize(
    ("limits", "wanted", "text"),
    [
        ({"max_tokens": 8}, asked(1, 9), "max_tokens is 9: more than tenant 't' may ask for, 8"),
        ({"tokens_per_minute": 20}, asked(15, 6), "15 prompt tokens and max_tokens 6 are more than tenant 't' may use"),
        ({"tokens_per_minute": 20}, asked(30, 1), "30 prompt tokens"),
        ({"running": 2}, asked(call_requests=3, call_tokens=3), "3 requests at once are more than tenant 't' may have"),
        ({"requests_per_minute": 2}, asked(call_requests=3, call_tokens=3), "3 requests at once"),
    ],
)
def test_what_waiting_does_not_help_is_invalid(limits: dict[str, int], wanted: Submit, text: str) -> None:
    found = refused(quotas_of(**limits), wanted)
    assert found.code is RejectionCode.INVALID
    assert text in found.detail


@pytest.mark.parametrize(
    ("limits", "most", "max_tokens"),
    [
        ({"max_tokens": 8}, 100, 8),
        ({"max_tokens": 8}, 12, 2),
        ({"tokens_per_minute": 50}, 100, 40),
        ({"tokens_per_minute": 50, "max_tokens": 30}, 0, 30),
        ({"tokens_per_minute": 5}, 100, 1),
        ({"requests_per_minute": 5}, 100, None),
    ],
)
def test_a_request_without_a_limit_gets_what_its_tenant_leaves(
    limits: dict[str, int], most: int, max_tokens: int | None
) -> None:
    assert quotas_of(**limits).cap_max_tokens(asked(10, None), most).max_tokens == max_tokens


def test_a_call_of_several_requests_is_admitted_whole_or_not_at_all() -> None:
    quotas = quotas_of(tokens_per_minute=100, running=3)
    quotas.reserve(1, asked(10, 20))
    call = [
        quotas.cap_max_tokens(asked(10, None, call_index=i, call_requests=2, call_tokens=20), 1000) for i in range(2)
    ]
    assert [one.max_tokens for one in call] == [40, 40]
    assert refused(quotas, call[0]).code is RejectionCode.QUOTA
    quotas.refund(1, 20, 0.0)
    quotas.replace(Quotas((Quota("t", tokens_per_minute=100, running=3),)), 60.0)
    for number, one in enumerate(call, 2):
        assert quotas.refusal(one, 60.0) is None
        quotas.reserve(number, one)
    quotas.check_integrity()
    assert refused(quotas, asked(1, 1), 60.0).code is RejectionCode.QUOTA


def test_smaller_quotas_hold_at_once_and_larger_ones_fill_up() -> None:
    quotas = quotas_of(tokens_per_minute=60)
    quotas.replace(Quotas((Quota("t", tokens_per_minute=30),)), 0.0)
    assert refused(quotas, asked(1, 30)).code is RejectionCode.INVALID
    quotas.replace(Quotas((Quota("t", tokens_per_minute=120),)), 0.0)
    assert refused(quotas, asked(20, 20)).retry_after_s == pytest.approx(5.0)
    quotas.replace(Quotas((Quota("t"),)), 0.0)
    assert quotas.refusal(asked(10_000), 0.0) is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "end", "wait"]),
        st.integers(1, 30),
        st.integers(1, 30),
        st.floats(0, 40, allow_nan=False),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(20, 80), st.integers(1, 6), st.integers(1, 5))
def test_no_order_of_events_uses_more_than_was_allowed(
    steps: list[tuple[str, int, int, float]], tokens: int, requests: int, running: int
) -> None:
    """From the start on: used <= a minute's worth + what filled up since, at every moment."""
    quotas = quotas_of(tokens_per_minute=tokens, requests_per_minute=requests, running=running)
    now_s, number, used, admitted = 0.0, 0, 0.0, 0
    open_: dict[int, tuple[int, int]] = {}
    for kind, prompt, generate, wait_s in steps:
        if kind == "wait":
            now_s += wait_s
        elif kind == "end" and open_:
            ending = sorted(open_)[prompt % len(open_)]
            taken, most = open_.pop(ending)
            generated = min(generate, most)
            used += taken + generated
            quotas.refund(ending, generated, now_s)
        elif kind == "ask":
            wanted = asked(prompt, generate)
            if quotas.refusal(wanted, now_s) is None:
                number, admitted = number + 1, admitted + 1
                quotas.reserve(number, wanted)
                open_[number] = (prompt, generate)
        quotas.check_integrity()
        at_most = used + sum(taken + most for taken, most in open_.values())
        assert at_most <= tokens + now_s * tokens / 60 + 1e-3
        assert admitted <= requests + now_s * requests / 60 + 1e-3
        assert len(open_) <= running


# --- in the core ---


def limited(**limits: Any) -> Bench:
    bench = Bench(max_positions=100).fleet(member(A))
    bench.give(Address("dispatcher", "d", 0x2A), Quotas((Quota("t", **limits), Quota("other"))))
    return bench


def test_over_the_limit_costs_no_engine_time() -> None:
    bench = limited(running=1)
    bench.run("first", tenant="t")
    sent = bench.give(client("second"), submit(tenant="t"))
    assert only(sent, SubmitRejected).code is RejectionCode.QUOTA
    assert not messages(sent, Place)
    assert bench.core.report().refused_total == 1
    assert only(bench.give(client("third"), submit(tenant="other")), Place).tenant == "other"


def test_a_request_gives_back_however_it_ends() -> None:
    bench = limited(running=1, tokens_per_minute=20)
    place = bench.run("a", tenant="t", max_tokens=10)
    bench.give(A, rows((place.request, 1, 3, 9), finish=FinishReason.STOP))
    bench.run("b", tenant="t", max_tokens=10)
    bench.give(client("b"), Abort())
    # 3 + 1 of the first, 3 of the second: 13 are left
    assert only(bench.give(client("c"), submit(tenant="t", max_tokens=11)), SubmitRejected).code is RejectionCode.QUOTA
    assert only(bench.give(client("d"), submit(tenant="t", max_tokens=10)), Admitted)


def test_a_request_without_max_tokens_is_dispatched_with_its_tenants() -> None:
    bench = limited(max_tokens=7)
    assert bench.run("a", tenant="t", max_tokens=None).max_tokens == 7


def test_a_tenants_max_tokens_are_no_more_than_the_fleet_holds() -> None:
    bench = Bench().fleet(member(A))
    bench.give(Address("dispatcher", "d", 0x2A), Quotas((Quota("t", max_tokens=5000),)))
    assert bench.run("a", tenant="t", max_tokens=None).max_tokens == 997


def test_a_request_refused_for_another_reason_reserves_nothing() -> None:
    bench = limited(requests_per_minute=1)
    for name in range(3):
        sent = bench.give(client(name), submit(range(90), tenant="t", max_tokens=50))
        assert only(sent, SubmitRejected).code is RejectionCode.TOO_LONG
    bench.run("a", tenant="t")


def test_a_tenant_cancels_its_own_requests_alone() -> None:
    bench = limited()
    sent = bench.give(client("a"), submit(tenant="t"))
    name = only(sent, Admitted).request
    for tenant, found in (("other", False), ("", False), ("t", True)):
        answer = bench.give(client("tool"), CancelById(name, tenant))
        assert only(answer, CancelResult).found is found
    assert [effect for effect in bench.last if isinstance(effect, Send)]


def random_event(random: Random, bench: Bench, number: int, places: list[Place]) -> list[Send]:
    """Feed one random event; what the core sent."""
    older = random.randrange(number + 1)
    match random.choice(["ask", "ask", "named", "resumed", "end", "abort", "cancel", "lost", "timer"]):
        case "ask":
            return bench.give(client(number), submit(tenant="t", max_tokens=random.randint(1, 60)))
        case "named":
            return bench.give(client(number), submit(tenant="t", idempotency=f"n{older % 5}", digest=b"d"))
        case "resumed":
            return bench.give(client(number), submit(tenant="t", key=f"req-9-{number:x}"))
        case "end" if places:
            place = random.choice(places)
            batch = rows((place.request, place.attempt, len(place.tokens), 9), finish=FinishReason.LENGTH)
            return bench.give(A, batch)
        case "abort":
            return bench.give(client(older), Abort())
        case "cancel":
            return bench.give(client("tool"), CancelById(f"req-2a-{older:x}", "t"))
        case "lost":
            bench.give(A, Gone("gone"))
            bench.give(A, Joined())
            return bench.view(member(A))
        case "timer" if bench.timers:
            return bench.fire(type(bench.timers[0][1]))
    return []


@pytest.mark.parametrize("seed", range(40))
def test_every_reservation_is_of_a_request_in_the_journal(seed: int) -> None:
    """Random lives of requests, also named and resumed ones: a hold comes with each, and goes with it."""
    random = Random(seed)
    bench = limited(requests_per_minute=10_000, tokens_per_minute=500, running=6)
    quotas, places, most = bench.core._admission.quotas, list[Place](), 0
    for number in range(200):
        bench.now_s += random.random()
        sent = random_event(random, bench, number, places)
        places += messages(sent, Place)
        quotas.check_integrity()
        assert list(quotas._reservations) == list(bench.core.journal._requests)
        asked = [one for one in bench.core.journal if one.state is RequestState.ADOPTING]
        assert len(bench.core.journal) <= 12, "as many again, until the instances were asked"
        most = max(most, len(bench.core.journal) - len(asked))
    assert 2 <= most <= 6
    bench.fleet(member(A))
    for number in list(quotas._reservations):
        bench.give(client("tool"), CancelById(bench.core.journal._requests[number].key))
    assert not quotas._reservations
