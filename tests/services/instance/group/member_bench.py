"""A member's core, alone, and a scripted leader that speaks to it."""

from typing import Any

from dunlin.effects import Address, Send
from dunlin.messages.engine import Interrupt, Interrupted, Meet, Met, StepDone
from dunlin.messages.group import (
    CloseGuest,
    GroupStep,
    JoinGroup,
    MeetMembers,
    MemberEngine,
    OpenGuest,
)
from dunlin.messages.types import GroupKind, GroupRole, f32, i8, i32, i64
from tests.services.instance.bench import ENGINE, MANAGER, ME, Direct, make_order, ready_core

LEADER = Address("instance", "lead", 7)
THIRD = Address("instance", "third", 8)
GROUP = 40
GUEST = GROUP << 32 | 1
OTHER_GUEST = GROUP << 32 | 2
DISPATCHER = Address("dispatcher", "d", 10)
AGENT = b"agent"
SLOTS = 400


def elastic(version: int = 2, *members: Address, **overrides: Any) -> Any:
    """An order that makes `ME` a member of LEADER's group, after a local one of version 1."""
    values = {"kind": GroupKind.ELASTIC, "part": GroupRole.MEMBER, "group": GROUP, "plan_version": version}
    return make_order(members=members or (LEADER, ME, THIRD), **{**values, **overrides})


def member(**config: Any) -> Direct:
    """A core that follows LEADER's order, is its member 1, and has met the engines of members 0 and 2."""
    direct = ready_core(engine={"slots": SLOTS, "agent": AGENT}, **config)
    direct.give(MANAGER, elastic())
    direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))
    engines = (MemberEngine(0, Address("engine", "lead"), b"a0"), MemberEngine(2, Address("engine", "third"), b"a2"))
    asked = direct.give(LEADER, MeetMembers(GROUP, engines))
    for send in asked:
        if isinstance(send.message, Meet):
            direct.give(ENGINE, Met(send.message.peer))
        elif isinstance(send.message, Interrupt):
            direct.give(ENGINE, Interrupted(ticket=send.message.ticket))
    return direct


def open_guest(slots: int, tokens: int = 100, sequence: int = GUEST, **overrides: Any) -> OpenGuest:
    text = i32([at % 90 + 1 for at in range(tokens)])
    values = {"prompt_tokens": tokens, "max_tokens": 20, "key": "k", **overrides}
    return OpenGuest(GROUP, sequence, DISPATCHER, 1, 1, tokens=text, slots=slots, **values)


def close_guest(sequence: int = GUEST) -> CloseGuest:
    return CloseGuest(GROUP, sequence)


Row = tuple[int, int, int]
Span = tuple[int, int, int, int]
Part = tuple[int, int, int, int, list[tuple[int, int]]]


def group_step(
    exchange: int, rows: list[Row], spans: list[Span] | None = None, parts: list[Part] | None = None, **overrides: Any
) -> GroupStep:
    """Rows are (guest, start, stop), spans (row, start, stop, member), parts (guest, start, stop, member, spans)."""
    spans, parts = spans or [], parts or []
    served = [(part, *each) for part, (*_, own) in enumerate(parts) for each in own]
    columns: dict[str, Any] = {
        "sequence": i64(row[0] for row in rows),
        "start": i64(row[1] for row in rows),
        "stop": i64(row[2] for row in rows),
        "sample": i8([0] * len(rows)),
        "span_row": i32(each[0] for each in spans),
        "span_start": i64(each[1] for each in spans),
        "span_stop": i64(each[2] for each in spans),
        "span_member": i32(each[3] for each in spans),
        "kind": GroupKind.MASTERS,
        "serve_sequence": i64(part[0] for part in parts),
        "serve_start": i64(part[1] for part in parts),
        "serve_stop": i64(part[2] for part in parts),
        "serve_member": i32(part[3] for part in parts),
        "serve_span_part": i32(each[0] for each in served),
        "serve_span_start": i64(each[1] for each in served),
        "serve_span_stop": i64(each[2] for each in served),
    }
    return GroupStep(GROUP, exchange, **{**columns, **overrides})


def answered(step: int, left: tuple[int, ...] = ()) -> StepDone:
    """The engine's answer to a step that sampled nothing."""
    return StepDone(step, i64(), i32(), f32(), i8(), left=i64(left))


def to_leader(sends: list[Send]) -> list[Any]:
    return [send.message for send in sends if send.to == LEADER]


def use(direct: Direct) -> tuple[int, int, int]:
    """(free, reserved, owned) slots as reported."""
    report = direct.core.report()
    return report.free_slots, report.reserved_slots, report.owned_slots
