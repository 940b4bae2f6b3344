"""Explanations: one sentence per record, out of nothing but the record."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.dispatch import (
    Accepted,
    Adopted,
    AdoptedElsewhere,
    Cancel,
    Continued,
    Failed,
    Place,
    Poisoned,
    Preempted,
    Ready,
    Refusal,
    Refused,
    Returned,
    Reused,
    Risen,
)
from dunlin.messages.engine import Remap, Step, StopEngine
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.group import Reserve
from dunlin.messages.lifecycle import Admitted, Closed, FirstToken, MissCause, Missed, RisenInQueue
from dunlin.messages.placement import LongPlaced, LongRefusal, LongRefused, PlaceLong
from dunlin.messages.plan import (
    AskMembers,
    Drain,
    Evacuate,
    GroupOrder,
    Handoff,
    HandoffTarget,
    RemapLayers,
    ReturnMembers,
    Undrain,
)
from dunlin.messages.pool import FindRegions, RegionRefused, ReserveRegion
from dunlin.messages.types import (
    Figure,
    FinishReason,
    GroupKind,
    GroupRole,
    Region,
    RejectedOption,
    RemapPhase,
    Why,
    i8,
    i32,
    i64,
)
from dunlin.telemetry.explain import (
    FINISHES,
    DecisionRecord,
    describe_reason,
    describe_record,
    explain,
    request_key,
    request_outcome,
    until_request_end,
    words,
)

D = Address("dispatcher", "d0", 0xC)
I0 = Address("instance", "i0", 10)
I1 = Address("instance", "i1", 11)
KV = Address("kvstore", "kv", 5)
CLIENT = Address("client", "http-1")
MONITOR = Address("monitor", "m", 4)
MANAGER = Address("global_manager", "g", 6)
ENGINE = Address("engine", "i0")
WHY = Why("least_loaded", "i0", (Figure("load", 0.25), Figure("slots", 12)), (RejectedOption("i1", "load 0.5"),))
SAID = ", because least_loaded chose i0 with load 0.25, slots 12 rather than i1 (load 0.5)."


def place(attempt: int = 1, *, tokens: int = 8, prompt_tokens: int = 8, request: int = 1) -> Place:
    return Place(request, attempt, i32(range(tokens)), prompt_tokens, 16, why=WHY)


def step(*lengths: int) -> Step:
    empty, starts = i64(), i64([10] * len(lengths))
    stops = i64(10 + length for length in lengths)
    return Step(7, i64(range(len(lengths))), starts, stops, i8([1] * len(lengths)), i32(), empty, empty, why=WHY)


def region_asked() -> ReserveRegion:
    return ReserveRegion(3, D, 1, 1, Region(0, 2, 0, 8), 4096, "fp32", "w", WHY)


ONE_OF_EACH: list[tuple[Address, Address, Any, str]] = [
    (D, CLIENT, Admitted("req-c-1", why=WHY), "d0 admitted it"),
    (D, CLIENT, Admitted("req-c-1", "00-aa-bb-01", WHY), "d0 admitted it into the trace 00-aa-bb-01"),
    (D, CLIENT, RisenInQueue("req-c-1", WHY), "it rose in the queue of d0, though it is batch work"),
    (I0, D, Risen(1, 1, WHY), "i0 let attempt 1 rise, though it is batch work"),
    (D, CLIENT, FirstToken("req-c-1", 2, I1, WHY), "the first token of attempt 2 came from i1"),
    (I0, CLIENT, Missed("req-c-1", 2, MissCause.SLOTS, True, WHY), "the first token of attempt 2 came late from i0"),
    (I0, CLIENT, Missed("req-c-1", 2, MissCause.STEP, False, WHY), "a token of attempt 2 came late from i0"),
    (D, CLIENT, Closed("req-c-1", FinishReason.DEADLINE, why=WHY), "d0 ended it (deadline) after 0 tokens"),
    (D, CLIENT, Closed("req-c-1", FinishReason.STOP, 1, why=WHY), "d0 ended it (stop) after 1 token"),
    (D, I0, place(), "d0 handed it to i0 as attempt 1, with 8 prompt tokens"),
    (
        D,
        I0,
        place(2, tokens=11),
        "d0 handed it to i0 as attempt 2, with 8 prompt tokens and 3 generated before",
    ),
    (D, I0, Cancel(1, 1, WHY), "d0 cancelled attempt 1 at i0"),
    (I0, D, Accepted(1, 1, 40, why=WHY), "i0 accepted attempt 1 as its sequence 40"),
    (I0, D, Reused(1, 1, 32, WHY), "i0 began attempt 1 after its first 32 tokens"),
    (I0, D, Refused(1, 1, Refusal.NOT_IN_PLAN, WHY), "i0 refused attempt 1 (not in plan)"),
    (I0, D, Returned(1, 1, WHY), "i0 gave attempt 1 back"),
    (I0, D, Failed(1, 1, WHY), "i0 could not go on with attempt 1"),
    (I0, D, Poisoned(1, 1, WHY), "i0 stopped attempt 1 as poison: it crashes engines"),
    (
        I0,
        D,
        Continued(1, 1, 41, 0, 1, WHY, 9),
        "i0 went on with attempt 1: 9 tokens still in its KV cache after the engine's restart, "
        "0 tokens restored from the host tier, 1 to compute again",
    ),
    (
        I0,
        D,
        Adopted(1, 1, "req-9-1", i32((5, 6)), 8, why=WHY),
        "d0 adopted it from i0 as attempt 1, with 2 tokens more than its client has",
    ),
    (I0, D, AdoptedElsewhere(1, 1, Address("dispatcher", "d1", 9), WHY), "i0 told d0 that d1 goes on with attempt 1"),
    (I0, D, Preempted(1, 1, WHY), "i0 took the slots of attempt 1 away, to go on with it later"),
    (
        I0,
        D,
        Continued(1, 1, 41, 6, 2, WHY),
        "i0 went on with attempt 1: 6 tokens restored from the host tier, 2 to compute again",
    ),
    (I0, D, Ready(1, 1, I1, 9, 6, WHY), "i0 copied 6 tokens of attempt 1 to i1"),
    (I0, KV, region_asked(), "i0 asked kv for 4096 bytes of host tier for tokens 0 to 8"),
    (
        I0,
        KV,
        FindRegions(4, "req-c-1", D, 1, 2, "w", "fp32", WHY),
        "i0 asked kv for KV of the request in the host tier",
    ),
    (
        I0,
        I1,
        Reserve(5, 10, 0, 2, 1, 1, WHY, "req-c-1", D, 1, 2),
        "i0 asked i1 for room for attempt 2, to move it there",
    ),
    (MANAGER, I0, Evacuate(50, 1, I1, 64, WHY), "g asked i0 to move about 64 slots of sequences to i1"),
    (MANAGER, I0, Drain(50, 1, WHY), "g asked i0 to move all of its sequences away"),
    (MANAGER, I0, RemapLayers(50, 1, i32([0, 2]), WHY), "g told i0 to hold layers 0, 2"),
    (MANAGER, I0, RemapLayers(50, 1, why=WHY), "g told i0 to hold all layers"),
    (MANAGER, I0, Undrain(50, 1, WHY), "g let i0 take requests again"),
    (KV, I0, RegionRefused(3, WHY), "kv refused i0 room in the host tier"),
    (I0, ENGINE, step(1), "i0 composed step 7: 1 row of one token"),
    (I0, ENGINE, step(64), "i0 composed step 7: 1 chunk of 64 tokens"),
    (I0, ENGINE, step(), "i0 composed step 7: no rows"),
    (I0, ENGINE, step(1, 1, 64, 30), "i0 composed step 7: 2 rows of one token and 2 chunks of 94 tokens"),
    (
        MANAGER,
        I0,
        GroupOrder(50, 2, 3, GroupKind.LOCAL, GroupRole.LOCAL, (I0,), why=WHY),
        "g ordered i0 into local group 3, plan 2 of epoch 50",
    ),
    (
        MANAGER,
        I0,
        GroupOrder(50, 2, 3, GroupKind.LOCAL, GroupRole.PREFILL, (I0,), why=WHY),
        "g ordered i0 into local group 3 as prefill, plan 2 of epoch 50",
    ),
    (
        MANAGER,
        I1,
        GroupOrder(50, 2, 9, GroupKind.ELASTIC, GroupRole.MEMBER, (I0, I1), why=WHY),
        "g ordered i1 into elastic group 9 of i0, i1 as member, plan 2 of epoch 50",
    ),
    (
        D,
        MANAGER,
        PlaceLong(1, 2, 900, 950, why=WHY),
        "d0 asked g for a group for attempt 2, 900 tokens now and up to 950",
    ),
    (MANAGER, D, LongPlaced(1, 2, I0, 9, WHY), "g placed attempt 2 in group 9, which i0 leads"),
    (
        MANAGER,
        D,
        LongRefused(1, 2, LongRefusal.NO_ROOM, 1.5, 800, WHY),
        "g had no group for attempt 2 (no room), to be asked again after 1.5 s",
    ),
    (I0, MANAGER, AskMembers(50, 2, 9, 64, WHY), "i0 asked g for members for 64 slots more in group 9"),
    (I0, MANAGER, ReturnMembers(50, 2, 9, (I1,), WHY), "i0 gave i1 of group 9 back to g"),
    (MANAGER, I0, Handoff(50, 1, (HandoffTarget(I1, 9, 10),), WHY), "g told i0 to hand off to i1"),
    (MANAGER, I0, Handoff(50, 1, (), WHY), "g told i0 to hand nothing off"),
    (MONITOR, I0, FleetView(2, (MemberView(I0, suspect=True, why=WHY),), 1), "m called i0 suspect"),
    (MONITOR, I0, FleetView(2, (MemberView(I0, why=WHY),), 1), "m called i0 trusted"),
    (I0, ENGINE, StopEngine(WHY), "i0 stopped its engine"),
    (I0, ENGINE, Remap(1, RemapPhase.PREPARE, i32(), WHY), "i0 sent i0 Remap"),
]


@pytest.mark.parametrize(("sender", "to", "message", "said"), ONE_OF_EACH)
def test_each_kind_of_record_has_its_sentence(sender: Address, to: Address, message: Any, said: str) -> None:
    assert describe_record(DecisionRecord(0.0, sender, to, message)) == said + SAID


def test_every_kind_with_words_is_tested() -> None:
    assert set(words.registry) - {object} <= {type(message) for *_, message, _ in ONE_OF_EACH}


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


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (None, ""),
        (Why("fifo"), ", because fifo"),
        (Why("fifo", "first"), ", because fifo chose first"),
        (Why("p", figures=(Figure("a", 2.0), Figure("b", 0.123456))), ", because p with a 2, b 0.1235"),
        (Why("p", figures=(Figure("a", float("inf")),)), ", because p with a inf"),
    ],
)
def test_a_reason_says_what_it_holds_and_no_more(why: Why | None, said: str) -> None:
    assert describe_reason(why) == said


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
