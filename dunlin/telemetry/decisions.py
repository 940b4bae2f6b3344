"""Decisions in words: one sentence per recorded decision message, out of that message alone."""

from dataclasses import dataclass
from enum import Enum
from functools import singledispatch
from math import isfinite
from typing import Any

from dunlin.effects import Address, Message
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
    Suspected,
)
from dunlin.messages.engine import Step, StopEngine
from dunlin.messages.fleet import FleetView
from dunlin.messages.group import Reserve
from dunlin.messages.lifecycle import Admitted, Closed, FirstToken, Missed, RisenInQueue
from dunlin.messages.placement import LongPlaced, LongRefusal, LongRefused, PlaceLong
from dunlin.messages.plan import (
    AskMembers,
    Drain,
    Evacuate,
    GroupOrder,
    Handoff,
    RemapLayers,
    ReturnMembers,
    Undrain,
)
from dunlin.messages.pool import FindRegions, RegionRefused, ReserveRegion
from dunlin.messages.types import Figure, FinishReason, GroupKind, GroupRole, Why


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One decision message as it was sent; `at_s` in seconds since 1970."""

    at_s: float
    sender: Address
    to: Address
    message: Message


def describe_record(record: DecisionRecord) -> str:
    """The sentence for one record, without its time. A message type without a sentence of its own is named."""
    return f"{words(record.message, record)}{describe_reason(getattr(record.message, 'why', None))}."


@singledispatch
def words(message: Any, record: DecisionRecord) -> str:
    """A sentence about a message without its reason; the functions below have those of the kinds that they name."""
    return f"{record.sender.name} sent {record.to.name} {type(message).__name__}"


def describe_reason(why: Why | None) -> str:
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


def _spelled(reason: Enum) -> str:
    return reason.name.lower().replace("_", " ")


def counted(number: int, one: str, many: str) -> str:
    """A number with its noun: `1 token`, `2 tokens`."""
    return f"{number} {one if number == 1 else many}"


@words.register
def _admitted(message: Admitted, record: DecisionRecord) -> str:
    return f"{record.sender.name} admitted it" + (f" into the trace {message.trace}" if message.trace else "")


@words.register
def _risen_in_queue(message: RisenInQueue, record: DecisionRecord) -> str:
    return f"it rose in the queue of {record.sender.name}, though it is batch work"


@words.register
def _first_token(message: FirstToken, record: DecisionRecord) -> str:
    return f"the first token of attempt {message.attempt} came from {message.instance.name}"


@words.register
def _closed(message: Closed, record: DecisionRecord) -> str:
    finish = FinishReason(message.finish).name.lower()
    return f"{record.sender.name} ended it ({finish}) after {counted(message.tokens, 'token', 'tokens')}"


@words.register
def _place(message: Place, record: DecisionRecord) -> str:
    known = len(message.tokens) - message.prompt_tokens
    tokens = f"{message.prompt_tokens} prompt tokens" + (f" and {known} generated before" if known else "")
    return f"{record.sender.name} handed it to {record.to.name} as attempt {message.attempt}, with {tokens}"


@words.register
def _place_long(message: PlaceLong, record: DecisionRecord) -> str:
    tokens = f"{message.tokens} tokens now and up to {message.longest}"
    return f"{record.sender.name} asked {record.to.name} for a group for attempt {message.attempt}, {tokens}"


@words.register
def _long_placed(message: LongPlaced, record: DecisionRecord) -> str:
    where = f"group {message.group}, which {message.leader.name} leads"
    return f"{record.sender.name} placed attempt {message.attempt} in {where}"


@words.register
def _long_refused(message: LongRefused, record: DecisionRecord) -> str:
    reason = _spelled(LongRefusal(message.reason))
    again = f", to be asked again after {message.retry_after_s:g} s" if message.retry_after_s else ""
    return f"{record.sender.name} had no group for attempt {message.attempt} ({reason}){again}"


@words.register
def _ask_members(message: AskMembers, record: DecisionRecord) -> str:
    wish = f"members for {message.slots} slots more" if message.slots else "no more members after all"
    return f"{record.sender.name} asked {record.to.name} for {wish} in group {message.group}"


@words.register
def _return_members(message: ReturnMembers, record: DecisionRecord) -> str:
    names = " and ".join(member.name for member in message.members) or "itself"
    return f"{record.sender.name} gave {names} of group {message.group} back to {record.to.name}"


@words.register
def _cancel(message: Cancel, record: DecisionRecord) -> str:
    return f"{record.sender.name} cancelled attempt {message.attempt} at {record.to.name}"


@words.register
def _accepted(message: Accepted, record: DecisionRecord) -> str:
    return f"{record.sender.name} accepted attempt {message.attempt} as its sequence {message.sequence}"


@words.register
def _reused(message: Reused, record: DecisionRecord) -> str:
    return f"{record.sender.name} began attempt {message.attempt} after its first {message.tokens} tokens"


@words.register
def _refused(message: Refused, record: DecisionRecord) -> str:
    reason = _spelled(Refusal(message.reason))
    return f"{record.sender.name} refused attempt {message.attempt} ({reason})"


@words.register
def _adopted(message: Adopted, record: DecisionRecord) -> str:
    beyond = f"{len(message.tokens)} tokens more than its client has"
    return f"{record.to.name} adopted it from {record.sender.name} as attempt {message.attempt}, with {beyond}"


@words.register
def _taken(message: AdoptedElsewhere, record: DecisionRecord) -> str:
    return f"{record.sender.name} told {record.to.name} that {message.by.name} goes on with attempt {message.attempt}"


@words.register
def _returned(message: Returned, record: DecisionRecord) -> str:
    return f"{record.sender.name} gave attempt {message.attempt} back"


@words.register
def _poisoned(message: Poisoned, record: DecisionRecord) -> str:
    return f"{record.sender.name} stopped attempt {message.attempt} as poison: it crashes engines"


@words.register
def _suspected(message: Suspected, record: DecisionRecord) -> str:
    return f"the engine of {record.sender.name} crashed in a step of attempt {message.attempt}, after that was over"


@words.register
def _failed(message: Failed, record: DecisionRecord) -> str:
    return f"{record.sender.name} could not go on with attempt {message.attempt}"


@words.register
def _preempted(message: Preempted, record: DecisionRecord) -> str:
    return f"{record.sender.name} took the slots of attempt {message.attempt} away, to go on with it later"


@words.register
def _risen(message: Risen, record: DecisionRecord) -> str:
    return f"{record.sender.name} let attempt {message.attempt} rise, though it is batch work"


@words.register
def _missed(message: Missed, record: DecisionRecord) -> str:
    token = "the first token" if message.is_first else "a token"
    return f"{token} of attempt {message.attempt} came late from {record.sender.name}"


@words.register
def _continued(message: Continued, record: DecisionRecord) -> str:
    ways = f"{message.restored_tokens} tokens restored from the host tier, {message.recomputed_tokens} to compute again"
    if message.revived_tokens:
        ways = f"{message.revived_tokens} tokens still in its KV cache after the engine's restart, {ways}"
    return f"{record.sender.name} went on with attempt {message.attempt}: {ways}"


@words.register
def _ready(message: Ready, record: DecisionRecord) -> str:
    return f"{record.sender.name} copied {message.tokens} tokens of attempt {message.attempt} to {message.target.name}"


@words.register
def _reserve_region(message: ReserveRegion, record: DecisionRecord) -> str:
    span = f"tokens {message.region.start} to {message.region.stop}"
    return f"{record.sender.name} asked {record.to.name} for {message.length_bytes} bytes of host tier for {span}"


@words.register
def _find_regions(message: FindRegions, record: DecisionRecord) -> str:
    return f"{record.sender.name} asked {record.to.name} for KV of the request in the host tier"


@words.register
def _reserve(message: Reserve, record: DecisionRecord) -> str:
    return f"{record.sender.name} asked {record.to.name} for room for attempt {message.attempt}, to move it there"


@words.register
def _evacuate(message: Evacuate, record: DecisionRecord) -> str:
    what = f"about {message.slots} slots of sequences to {message.target.name}"
    return f"{record.sender.name} asked {record.to.name} to move {what}"


@words.register
def _drain(message: Drain, record: DecisionRecord) -> str:
    return f"{record.sender.name} asked {record.to.name} to move all of its sequences away"


@words.register
def _undrain(message: Undrain, record: DecisionRecord) -> str:
    return f"{record.sender.name} let {record.to.name} take requests again"


@words.register
def _region_refused(message: RegionRefused, record: DecisionRecord) -> str:
    return f"{record.sender.name} refused {record.to.name} room in the host tier"


@words.register
def _step(message: Step, record: DecisionRecord) -> str:
    lengths = [stop - start for start, stop in zip(message.start, message.stop, strict=True)]
    longer = [length for length in lengths if length > 1]
    single = len(lengths) - len(longer)
    rows = [counted(single, "row of one token", "rows of one token")] if single else []
    if longer:
        rows.append(counted(len(longer), "chunk", "chunks") + f" of {sum(longer)} tokens")
    return f"{record.sender.name} composed step {message.step}: {' and '.join(rows) or 'no rows'}"


@words.register
def _handoff(message: Handoff, record: DecisionRecord) -> str:
    names = [room.address.name for room in message.rooms]
    order = f"to hand off to {' or '.join(names)}" if names else "to hand nothing off"
    return f"{record.sender.name} told {record.to.name} {order}"


@words.register
def _remap_layers(message: RemapLayers, record: DecisionRecord) -> str:
    layers = f"layers {', '.join(map(str, message.layers))}" if len(message.layers) else "all layers"
    return f"{record.sender.name} told {record.to.name} to hold {layers}"


@words.register
def _order(message: GroupOrder, record: DecisionRecord) -> str:
    kind = GroupKind(message.kind).name.lower()
    part = "" if message.part is GroupRole.LOCAL else f" as {GroupRole(message.part).name.lower()}"
    names = ", ".join(member.name for member in message.members)
    of = f" of {names}" if len(message.members) > 1 else ""
    place = f"{kind} group {message.group}{of}{part}, plan {message.plan_version} of epoch {message.epoch}"
    return f"{record.sender.name} ordered {record.to.name} into {place}"


@words.register
def _fleet_view(message: FleetView, record: DecisionRecord) -> str:
    changes = [f"{view.address.name} {'suspect' if view.suspect else 'trusted'}" for view in message.members]
    whys = "".join(describe_reason(view.why) for view in message.members)
    return f"{record.sender.name} called {' and '.join(changes) or 'no process suspect'}{whys}"


@words.register
def _stop_engine(message: StopEngine, record: DecisionRecord) -> str:
    return f"{record.sender.name} stopped its engine"
