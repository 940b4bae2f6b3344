"""Sentences of decisions: one per kind of message, and what the reason behind it says."""

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
    Poisoned,
    Preempted,
    Ready,
    Refusal,
    Refused,
    Returned,
    Reused,
    Risen,
    Suspected,
)
from dunlin.messages.engine import Remap, StopEngine
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
from dunlin.messages.pool import FindRegions, RegionRefused
from dunlin.messages.types import Figure, FinishReason, GroupKind, GroupRole, RemapPhase, Why, i32
from dunlin.telemetry.decisions import DecisionRecord, describe_reason, describe_record, words
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

SAID = ", because least_loaded chose i0 with load 0.25, slots 12 rather than i1 (load 0.5)."

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
    (I0, D, Suspected(1, 1, True, WHY), "the engine of i0 crashed in a step of attempt 1, after that was over"),
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
