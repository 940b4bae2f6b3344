"""Explanations: one sentence per record, out of nothing but the record."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.dispatch import Accepted, Adopted, Cancel, Preempted
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.lifecycle import Admitted, Closed, FirstToken
from dunlin.messages.plan import GroupOrder
from dunlin.messages.pool import FindRegions
from dunlin.messages.types import Figure, FinishReason, GroupKind, GroupRole, Why, i32
from dunlin.telemetry.decisions import DecisionRecord
from dunlin.telemetry.explain import FINISHES, explain, request_key, request_outcome, until_request_end
from tests.telemetry.decision_messages import (
    CLIENT,
    ENGINE,
    I0,
    I1,
    KV,
    MANAGER,
    MONITOR,
    WHY,
    D,
    place,
    region_asked,
    step,
)

FINISHED = [
    (D, CLIENT, Admitted("req-c-1", why=WHY)),
    (D, I0, place()),
    (I0, D, Accepted(1, 1, 40, why=WHY)),
    (I0, ENGINE, step(64)),
    (D, CLIENT, FirstToken("req-c-1", 1, I0, WHY)),
    (I0, ENGINE, step(1)),
    (D, CLIENT, Closed("req-c-1", FinishReason.STOP, 2, why=WHY)),
]
RUNNING = [*FINISHED[:4], (I0, D, Preempted(1, 1, WHY)), (I0, KV, region_asked())]
FAILED_OVER = [
    *FINISHED[:4],
    (MONITOR, I0, FleetView(2, (MemberView(I0, suspect=True, why=WHY),), 1)),
    (D, I0, Cancel(1, 1, WHY)),
    (D, I1, place(2, tokens=10)),
    (I1, D, Accepted(1, 2, 9, why=WHY)),
]


def records(messages: list[Any]) -> list[DecisionRecord]:
    return [DecisionRecord(1000.0 + 0.25 * index, *parts) for index, parts in enumerate(messages)]


@pytest.mark.parametrize("story", [FINISHED, RUNNING, FAILED_OVER], ids=["finished", "running", "failed-over"])
def test_a_record_that_is_removed_takes_exactly_its_sentence_along(story: list[Any]) -> None:
    whole = records(story)
    lines = explain(whole, "req-c-1")
    assert len(lines) == len(whole)
    for index in range(1, len(whole)):
        assert explain(whole[:index] + whole[index + 1 :], "req-c-1") == lines[:index] + lines[index + 1 :]
    words = [line.split("  ", 1)[1] for line in explain(whole[1:], "req-c-1")]
    assert words == [line.split("  ", 1)[1] for line in lines[1:]]


def test_times_count_from_the_first_record_that_names_the_request() -> None:
    order = (MANAGER, I0, GroupOrder(50, 2, 3, GroupKind.LOCAL, GroupRole.LOCAL, (I0,), why=WHY))
    lines = explain(records([order, *FAILED_OVER]), "req-c-1")
    assert [line.split()[0] for line in lines[:4]] == ["-0.250", "+0.000", "+0.250", "+0.500"]
    assert [line.split()[0] for line in explain(records([order, order]), "req-c-1")] == ["+0.000", "+0.250"]


@pytest.mark.parametrize("other", [place(request=2), Cancel(2, 1)])
def test_a_record_of_another_request_is_left_out(other: Any) -> None:
    assert len(explain(records([*FINISHED, (D, I0, other)]), "req-c-1")) == len(FINISHED)


def test_a_record_of_another_dispatcher_is_left_out() -> None:
    other = Address("dispatcher", "d1", 0xD)
    strangers = [(other, I0, place()), (I0, other, Accepted(1, 1, 4))]
    assert explain(records(strangers), "req-c-1") == []
    assert len(explain(records(strangers), "req-d-1")) == 2


def test_an_adopted_request_is_told_on_under_its_first_name() -> None:
    heir = Address("dispatcher", "d1", 0xD)
    adopted = (I0, heir, Adopted(7, 1, "req-c-1", i32((5,)), 8, why=WHY))
    story = [*FINISHED, adopted, (I0, heir, Preempted(7, 1, WHY)), (I0, heir, Preempted(8, 1, WHY))]
    lines = explain(records(story), "req-c-1")
    assert len(lines) == len(FINISHED) + 2
    assert "d1 adopted it from i0" in lines[-2]


@pytest.mark.parametrize("name", ["req-c-1", "tenant/req-c-1"])
def test_a_region_names_its_request_behind_the_tenant(name: str) -> None:
    heir = Address("dispatcher", "d1", 0xD)
    sought = FindRegions(3, name, heir, 7, 1, "w", "fp32", WHY)
    assert len(explain(records([*FINISHED, (I0, Address("kvstore", "kv", 5), sought)]), "req-c-1")) == len(FINISHED) + 1


def test_no_record_no_sentence() -> None:
    assert explain([], "req-c-1") == []


@pytest.mark.parametrize("name", ["", "req-", "req-c", "req-x-1", "req-c-", "job-c-1", "req-c-1-2"])
def test_what_is_no_request_id_is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(ValueError, match="is not a request id"):
        explain([], name)


def test_a_request_id_is_hexadecimal() -> None:
    assert request_key("req-1f-a") == (31, 10)


def test_the_story_ends_where_the_request_ended() -> None:
    order = (MANAGER, I0, GroupOrder(50, 2, 3, GroupKind.LOCAL, GroupRole.LOCAL, (I0,), why=WHY))
    late = (D, I0, Cancel(1, 1, WHY))
    whole = records([order, *FINISHED, order, late, (I0, ENGINE, step(1))])
    kept = until_request_end(whole, "req-c-1")
    assert kept == [*whole[: 1 + len(FINISHED)], whole[-2]]
    assert until_request_end(records(RUNNING), "req-c-1") == records(RUNNING)


def test_the_outcome_says_how_and_how_long() -> None:
    figures = (Figure("attempts", 2), Figure("lost_in_a_row", 0), Figure("seconds", 1.25))
    first = FirstToken("req-c-1", 1, I0, Why("prefill", "done", (Figure("first_token_s", 0.5),)))
    closed = Closed("req-c-1", FinishReason.LENGTH, 20, why=Why("end", "length", figures))
    lines = request_outcome(records([*FINISHED[:4], (D, CLIENT, first), (D, CLIENT, closed)]), "req-c-1")
    assert lines == (
        "it had as many tokens as it may (length: max_tokens, or what the model holds), after 20 tokens; "
        "1.250 s from its arrival to its end; 0.500 s to its first token; 2 attempts"
    )
    assert request_outcome(records(RUNNING), "req-c-1").startswith("no end is recorded")
    assert set(FINISHES) == set(FinishReason)
