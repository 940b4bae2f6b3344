"""What a record refers to, for each subject that a message can declare; and that every decision's can be read."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.declare import Hold, Subject, declaration_of
from dunlin.messages.dispatch import Accepted, Cancel, Place, Preempted
from dunlin.messages.engine import Close, Remap, Step
from dunlin.messages.fleet import MemberView
from dunlin.messages.group import Reserve
from dunlin.messages.lifecycle import Closed
from dunlin.messages.plan import Drain, GroupOrderRefused
from dunlin.messages.pool import FindRegions, RegionRefused
from dunlin.messages.subjects import References, parse_request, references_of
from dunlin.messages.types import FinishReason, RemapPhase, Why, i8, i32, i64
from dunlin.wire.protos import VOCABULARIES

D = Address("dispatcher", "d0", 0xC)
HEIR = Address("dispatcher", "d1", 0xD)
I0 = Address("instance", "i0", 10)
KV = Address("kvstore", "kv", 5)
WHY = Why("policy")


def step(*sequences: int) -> Step:
    nones, samples = i64([0] * len(sequences)), i8([0] * len(sequences))
    return Step(1, i64(sequences), nones, nones, samples, i32(), i64(), i64())


@pytest.mark.parametrize(
    ("sender", "to", "message", "refers_to"),
    [
        (D, I0, Place(7, 2, i32(), 0, 4, key="req-c-7"), References((0xC, 7), (0xC, 7), I0, 2, hold=Hold.OFFERED)),
        (HEIR, I0, Cancel(3, 1), References((0xD, 3), None, I0, 1, hold=Hold.ENDS)),
        (I0, D, Accepted(7, 2, 40), References((0xC, 7), None, I0, 2, 40, hold=Hold.BEGINS)),
        (I0, D, Preempted(7, 2), References((0xC, 7), None, I0, 2, hold=Hold.WAITS)),
        (I0, KV, FindRegions(9, "t/req-c-7", D, 7, 2, "w", "fp32"), References((0xC, 7), None, I0, 2, ticket=9)),
        (I0, I0, Reserve(1, 8, 0, 2, 50, 1), References(None, None, I0)),
        (D, Address("client", "c"), Closed("req-c-7", FinishReason.STOP), References((0xC, 7), (0xC, 7))),
        (D, Address("client", "c"), Closed("", FinishReason.ERROR), References()),
        (KV, I0, RegionRefused(9), References(instance=I0, ticket=9)),
        (I0, Address("engine", "i0"), step(4, 5), References(instance=I0, sequences=i64([4, 5]))),
        (Address("global_manager", "g"), I0, Drain(50, 1), References(instance=I0, whole_instance=True)),
        (
            I0,
            Address("engine", "i0"),
            Remap(1, RemapPhase.PREPARE, i32()),
            References(instance=I0, whole_instance=True),
        ),
        (I0, D, GroupOrderRefused(50, 1, "stale", WHY), References()),
        (I0, Address("engine", "i0"), Close(4), References()),
    ],
)
def test_a_record_refers_to_what_its_message_is_about(
    sender: Address, to: Address, message: Any, refers_to: References
) -> None:
    assert references_of(sender, to, message) == refers_to


def test_a_step_names_its_sequences() -> None:
    refs = references_of(I0, Address("engine", "i0"), step(4, 5))
    assert refs.names_any((5, 6))
    assert not refs.names_any((6,))


NEEDED = {
    Subject.SENDERS_REQUEST: {"request", "attempt"},
    Subject.RECEIVERS_REQUEST: {"request", "attempt"},
    Subject.DISPATCHERS_REQUEST: {"dispatcher", "request", "attempt"},
    Subject.REQUEST_ID: {"request"},
    Subject.TICKET: {"ticket"},
    Subject.SEQUENCES: {"sequence"},
}


def declared() -> list[type[Any]]:
    return [kind for module in VOCABULARIES for kind in vars(module).values() if declaration_of(kind) is not None]


@pytest.mark.parametrize("kind", declared(), ids=lambda kind: kind.__name__)
def test_a_message_has_the_fields_that_its_subject_reads(kind: type[Any]) -> None:
    said = declaration_of(kind)
    assert said is not None
    fields = set(kind.__dataclass_fields__)
    assert NEEDED.get(said.about, set()) <= fields if said.about else True
    assert said.about is not None or "why" not in fields or kind is MemberView


@pytest.mark.parametrize("name", ["", "req-", "req-c", "req-x-1", "req-c-", "job-c-1", "req-c-1-2"])
def test_what_is_no_public_id_names_no_request(name: str) -> None:
    assert parse_request(name) is None
    assert parse_request("req-1f-a") == (31, 10)
