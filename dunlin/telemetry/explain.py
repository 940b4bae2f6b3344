"""Explains a request's course: one sentence per recorded decision, out of the decision messages alone.

Pure: a sentence depends on its own record, and on the time at which the request was first handed out. Which records
concern a request is found out where they are kept (the monitor); what is here only leaves out those that name another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from dunlin.effects import Address, Message
from dunlin.messages.dispatch import (
    Accepted,
    Adopted,
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
    Taken,
)
from dunlin.messages.engine import Step, StopEngine
from dunlin.messages.fleet import FleetView
from dunlin.messages.group import Reserve
from dunlin.messages.plan import Drain, HandOver, Order, Shed, Undrain
from dunlin.messages.pool import FindRegions, RegionRefused, ReserveRegion
from dunlin.messages.told import Admitted, Closed, FirstToken
from dunlin.messages.types import Figure, Finish, GroupKind, Part, Why

DISPATCHED = (Place, Cancel)
"""They name the request by the sender's number."""

ANSWERED = (Accepted, Refused, Returned, Preempted, Continued, Ready, Poisoned, Failed, Adopted, Taken, Reused)
"""Named by the receiver's numbers. A dispatcher that adopts a request gives it another number and leaves it its key."""

TOLD = (Admitted, FirstToken, Closed)
"""They name the request by its public id."""

FINISHES = {
    Finish.RUNNING: "it ended",
    Finish.STOP: "it stopped by itself (stop: an end token, or a stop text of the request)",
    Finish.LENGTH: "it had as many tokens as it may (length: max_tokens, or what the model holds)",
    Finish.CANCELLED: "it was cancelled",
    Finish.DEADLINE: "its time was up (deadline)",
    Finish.ERROR: "it failed (error)",
}
_FIRST = "first_token_s"


@dataclass(frozen=True, slots=True)
class Record:
    """One decision message as it was sent; `at_s` in seconds since 1970."""

    at_s: float
    sender: Address
    to: Address
    message: Message


def explain(records: Sequence[Record], request: str) -> list[str]:
    """One sentence per record, in the given order, with the seconds since the first that names the request itself.

    Args:
        records: decision messages, oldest first.
        request: the public id, `req-<dispatcher incarnation>-<number>`, both hexadecimal.

    Raises:
        ValueError: `request` is no such id.
    """
    key = request_key(request)
    mine = [(record, _names(record)) for record in records]
    names = {key, *(named for record, named in mine if _key_of(record.message) == request)}
    mine = [(record, named) for record, named in mine if named is None or named in names]
    starts = [record.at_s for record, named in mine if named] or [record.at_s for record, _ in mine]
    return [f"{record.at_s - starts[0]:+.3f} s  {sentence(record)}" for record, _ in mine]


def to_its_end(records: Sequence[Record], request: str) -> list[Record]:
    """The records up to the request's end, without what other processes did afterwards.

    Raises:
        ValueError: `request` is no public id.
    """
    request_key(request)
    closed = [index for index, record in enumerate(records) if _ends(record.message, request)]
    if not closed:
        return list(records)
    return [record for index, record in enumerate(records) if index <= closed[-1] or _names(record) is not None]


def outcome(records: Sequence[Record], request: str) -> str:
    """One sentence on how the request ended."""
    closed = [record.message for record in records if _ends(record.message, request)]
    if not closed:
        return "no end is recorded: it still runs, or the record was lost with its dispatcher"
    last = closed[-1]
    assert isinstance(last, Closed)
    figures = {figure.name: figure.value for figure in last.why.figures} if last.why is not None else {}
    parts = [f"{FINISHES[last.finish]}, after {_count(last.tokens, 'token', 'tokens')}"]
    if "seconds" in figures:
        parts.append(f"{figures['seconds']:.3f} s from its arrival to its end")
    first = [record.message.why for record in records if isinstance(record.message, FirstToken)]
    waits = [figure.value for why in first if why is not None for figure in why.figures if figure.name == _FIRST]
    if waits:
        parts.append(f"{waits[0]:.3f} s to its first token")
    if "attempts" in figures:
        parts.append(_count(int(figures["attempts"]), "attempt", "attempts"))
    return "; ".join(parts)


def _ends(message: Message, request: str) -> bool:
    return isinstance(message, Closed) and message.request == request


def request_key(request: str) -> tuple[int, int]:
    """(dispatcher incarnation, number) of a public id.

    Raises:
        ValueError: it is none.
    """
    prefix, _, rest = request.partition("-")
    incarnation, _, number = rest.partition("-")
    try:
        if prefix != "req":
            raise ValueError
        return int(incarnation, 16), int(number, 16)
    except ValueError:
        raise ValueError(f"{request!r} is not a request id: expected req-<incarnation>-<number>, both hex") from None


def _key_of(message: Message) -> str:
    """The public id that a message names; regions are named by it behind their tenant's name."""
    key: str = getattr(message, "key", "")
    return key.rpartition("/")[2]


def sentence(record: Record) -> str:
    """The sentence for one record, without its time. A message type without a sentence of its own is named."""
    told = SENTENCES.get(type(record.message))
    text = told(record, record.message) if told is not None else _plain(record)
    return f"{text}{because(getattr(record.message, 'why', None))}."


def because(why: Why | None) -> str:
    """The reason in words: policy and choice, the numbers compared, the alternatives rejected. Empty without one."""
    if why is None:
        return ""
    parts = [f"{why.policy} chose {why.chosen}" if why.chosen else why.policy]
    if why.figures:
        parts.append("with " + ", ".join(_figure(figure) for figure in why.figures))
    if why.rejected:
        parts.append("rather than " + ", ".join(f"{other.option} ({other.reason})" for other in why.rejected))
    return f", because {parts[0]}" + "".join(f" {part}" for part in parts[1:])


def _figure(figure: Figure) -> str:
    whole = isfinite(figure.value) and figure.value == int(figure.value)
    return f"{figure.name} {int(figure.value)}" if whole else f"{figure.name} {figure.value:.4g}"


def _names(record: Record) -> tuple[int, int] | None:
    """The request that a record names itself, if any."""
    message: Any = record.message
    if isinstance(message, TOLD):
        return request_key(message.request) if message.request else None
    if isinstance(message, ReserveRegion | FindRegions | Reserve):
        if message.dispatcher is None:
            return None
        return message.dispatcher.incarnation, message.request
    if isinstance(message, DISPATCHED):
        return record.sender.incarnation, message.request
    if isinstance(message, ANSWERED):
        return record.to.incarnation, message.request
    return None


def _admitted(record: Record, message: Admitted) -> str:
    return f"{record.sender.name} admitted it" + (f" into the trace {message.trace}" if message.trace else "")


def _first_token(record: Record, message: FirstToken) -> str:
    return f"the first token of attempt {message.attempt} came from {message.instance.name}"


def _closed(record: Record, message: Closed) -> str:
    finish = Finish(message.finish).name.lower()
    return f"{record.sender.name} ended it ({finish}) after {_count(message.tokens, 'token', 'tokens')}"


def _place(record: Record, message: Place) -> str:
    known = len(message.tokens) - message.prompt_tokens
    tokens = f"{message.prompt_tokens} prompt tokens" + (f" and {known} generated before" if known else "")
    return f"{record.sender.name} handed it to {record.to.name} as attempt {message.attempt}, with {tokens}"


def _cancel(record: Record, message: Cancel) -> str:
    return f"{record.sender.name} cancelled attempt {message.attempt} at {record.to.name}"


def _accepted(record: Record, message: Accepted) -> str:
    return f"{record.sender.name} accepted attempt {message.attempt} as its sequence {message.sequence}"


def _reused(record: Record, message: Reused) -> str:
    return f"{record.sender.name} began attempt {message.attempt} after its first {message.tokens} tokens"


def _refused(record: Record, message: Refused) -> str:
    reason = Refusal(message.reason).name.lower().replace("_", " ")
    return f"{record.sender.name} refused attempt {message.attempt} ({reason})"


def _adopted(record: Record, message: Adopted) -> str:
    beyond = f"{len(message.tokens)} tokens more than its client has"
    return f"{record.to.name} adopted it from {record.sender.name} as attempt {message.attempt}, with {beyond}"


def _taken(record: Record, message: Taken) -> str:
    return f"{record.sender.name} told {record.to.name} that {message.by.name} goes on with attempt {message.attempt}"


def _returned(record: Record, message: Returned) -> str:
    return f"{record.sender.name} gave attempt {message.attempt} back"


def _poisoned(record: Record, message: Poisoned) -> str:
    return f"{record.sender.name} stopped attempt {message.attempt} as poison: it crashes engines"


def _failed(record: Record, message: Failed) -> str:
    return f"{record.sender.name} could not go on with attempt {message.attempt}"


def _preempted(record: Record, message: Preempted) -> str:
    return f"{record.sender.name} took the slots of attempt {message.attempt} away, to go on with it later"


def _continued(record: Record, message: Continued) -> str:
    ways = f"{message.restored_tokens} tokens restored from the host tier, {message.recomputed_tokens} to compute again"
    if message.revived_tokens:
        ways = f"{message.revived_tokens} tokens found in the slab by its new engine, {ways}"
    return f"{record.sender.name} went on with attempt {message.attempt}: {ways}"


def _ready(record: Record, message: Ready) -> str:
    return f"{record.sender.name} copied {message.tokens} tokens of attempt {message.attempt} to {message.target.name}"


def _reserve_region(record: Record, message: ReserveRegion) -> str:
    span = f"tokens {message.region.start} to {message.region.stop}"
    return f"{record.sender.name} asked {record.to.name} for {message.length_bytes} bytes of host tier for {span}"


def _find_regions(record: Record, message: FindRegions) -> str:
    return f"{record.sender.name} asked {record.to.name} for KV of the request in the host tier"


def _reserve(record: Record, message: Reserve) -> str:
    return f"{record.sender.name} asked {record.to.name} for room for attempt {message.attempt}, to move it there"


def _shed(record: Record, message: Shed) -> str:
    asked = f"{record.sender.name} asked {record.to.name} to move about {message.slots} slots of sequences"
    return f"{asked} to {message.target.name}"


def _drain(record: Record, message: Drain) -> str:
    return f"{record.sender.name} asked {record.to.name} to move all of its sequences away"


def _undrain(record: Record, message: Undrain) -> str:
    return f"{record.sender.name} let {record.to.name} take requests again"


def _region_refused(record: Record, message: RegionRefused) -> str:
    return f"{record.sender.name} refused {record.to.name} room in the host tier"


def _step(record: Record, message: Step) -> str:
    lengths = [stop - start for start, stop in zip(message.start, message.stop, strict=True)]
    longer = [length for length in lengths if length > 1]
    single = len(lengths) - len(longer)
    rows = [_count(single, "row of one token", "rows of one token")] if single else []
    if longer:
        rows.append(_count(len(longer), "chunk", "chunks") + f" of {sum(longer)} tokens")
    return f"{record.sender.name} composed step {message.step}: {' and '.join(rows) or 'no rows'}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _hand_over(record: Record, message: HandOver) -> str:
    names = [room.address.name for room in message.rooms]
    return f"{record.sender.name} told {record.to.name} to hand over to {' or '.join(names) or 'nobody'}"


def _order(record: Record, message: Order) -> str:
    kind = GroupKind(message.kind).name.lower()
    part = "" if message.part is Part.LOCAL else f" as {Part(message.part).name.lower()}"
    place = f"{kind} group {message.group}{part}, plan {message.plan_version} of epoch {message.epoch}"
    return f"{record.sender.name} ordered {record.to.name} into {place}"


def _fleet_view(record: Record, message: FleetView) -> str:
    told = [f"{view.address.name} {'suspect' if view.suspect else 'trusted'}" for view in message.members]
    whys = "".join(because(view.why) for view in message.members)
    return f"{record.sender.name} called {' and '.join(told) or 'nobody suspect'}{whys}"


def _stop_engine(record: Record, message: StopEngine) -> str:
    return f"{record.sender.name} stopped its engine"


def _plain(record: Record) -> str:
    return f"{record.sender.name} sent {record.to.name} {type(record.message).__name__}"


SENTENCES: dict[type[Any], Callable[[Record, Any], str]] = {
    Admitted: _admitted,
    FirstToken: _first_token,
    Closed: _closed,
    Place: _place,
    Cancel: _cancel,
    Accepted: _accepted,
    Refused: _refused,
    Returned: _returned,
    Poisoned: _poisoned,
    Failed: _failed,
    Preempted: _preempted,
    Continued: _continued,
    Reused: _reused,
    Ready: _ready,
    Adopted: _adopted,
    Taken: _taken,
    ReserveRegion: _reserve_region,
    RegionRefused: _region_refused,
    FindRegions: _find_regions,
    Reserve: _reserve,
    Shed: _shed,
    Drain: _drain,
    Undrain: _undrain,
    Step: _step,
    HandOver: _hand_over,
    Order: _order,
    FleetView: _fleet_view,
    StopEngine: _stop_engine,
}
