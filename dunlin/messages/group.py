"""Instance ↔ instance: room for a peer's regions, in bulk, ahead of steps; and the steps of a group. Cores answer,
not engines.

The instance that needs a peer dials it; either side may then ask on the one stream that joins them. `DialPeer` is
local: it asks this process's own dialing for such a stream and never crosses a wire.

A group's leader says `JoinGroup`, and the member `MemberReady`; once all engines have met (`MeetMembers`, `MembersMet`)
the leader opens *guests*: sequences of its own that members compute parts of. It names members by the index that
`JoinGroup` gave them and tokens by their positions; a member alone knows its slots. Every `GroupStep` has one
`GroupStepDone`.
All of these carry the group's number, which no two groups share; what names another group than the member's is stale.
"""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.declare import Parties, Subject, message, number
from dunlin.messages.engine import StepDone
from dunlin.messages.types import (
    I8,
    I32,
    I64,
    GroupKind,
    KeptRegion,
    Region,
    SamplingParams,
    Why,
    i8,
    i32,
    i64,
)

PARTIES = Parties("Group", dialers=("instance",), acceptor="instance")

_GROUP_SHIFT = 32


def number_in_group(group: int, count: int) -> int:
    """The number of a group's guest or exchange, which no other group gives. `count` starts at 1."""
    return (group << _GROUP_SHIFT) + count


def group_of(number: int) -> int:
    """The group that gave a number by `number_in_group`; 0: an instance gave it, to a sequence of its own."""
    return number >> _GROUP_SHIFT


@message(command=2, event=6, about=Subject.DISPATCHERS_REQUEST)
class Reserve:
    """Set slots aside for `tokens` tokens of the sender's sequence, for layers `[layer_start, layer_stop)`.

    `key`, `dispatcher`, `request` and `attempt` name the attempt that the tokens belong to; only a newer attempt of
    that request may start from them. `longest` is what the sequence may grow to.
    """

    sequence: int = number(1)
    tokens: int = number(2)
    layer_start: int = number(3)
    layer_stop: int = number(4)
    epoch: int = number(5)
    plan_version: int = number(6)
    why: Why | None = number(7, default=None)
    key: str = number(8, default="")
    dispatcher: Address | None = number(9, default=None)
    request: int = number(10, default=0)
    attempt: int = number(11, default=0)
    longest: int = number(12, default=0)
    weights_digest: str = number(13, default="")
    kv_dtype: str = number(14, default="")


@message()
class PeerRoom:
    """Where reserved slots lie, for an engine of the same node that writes straight into them.

    The extents name slots of `engine` in order of position, in its `layout`; `agent` is what it said of its memory.
    """

    engine: Address = number(1)
    agent: bytes = number(2)
    layout: int = number(3)
    extent_start: I64 = number(4)
    extent_length: I64 = number(5)


@message(command=5, event=2)
class Reserved:
    """The room is set aside under `handle` until released or used. `keeper` is the kvstore that it fills from.

    A sender that was told a `room` may write into it until it says `Release`, whatever became of the handle.
    """

    sequence: int = number(1)
    handle: int = number(2)
    keeper: Address | None = number(3, default=None)
    room: PeerRoom | None = number(4, default=None)


@message(command=6, event=3, about=Subject.NOTHING)
class ReserveRefused:
    """No room, or the order is stale."""

    sequence: int = number(1)
    why: Why | None = number(2, default=None)


@message(command=4, event=8)
class Fill:
    """Copy the host regions that cover tokens up to `tokens`, after those filled before, into the room.

    `keeper` is the kvstore that has them; where it is another node's than the sender's, `regions` is empty and the
    receiver claims them there by the key.
    """

    handle: int = number(1)
    tokens: int = number(2)
    regions: tuple[KeptRegion, ...] = number(3, default=())
    keeper: Address | None = number(4, default=None)


@message(command=9, event=9)
class Written:
    """The sender's engine has written the KV of `region` into the room; `Filled` answers once the receiver's has
    compared what lies there with `checksum`. `chain` names the tokens up to the region's end.
    """

    handle: int = number(1)
    region: Region = number(2)
    checksum: int = number(3)
    chain: bytes = number(4)


@message(command=7, event=4)
class Filled:
    """The first `tokens` tokens' KV lie in the room. Fewer than were sent: `detail` says why, and no more can come."""

    handle: int = number(1)
    tokens: int = number(2)
    detail: str = number(3, default="")


@message(command=3, event=7)
class Release:
    """Give the room under `handle` back."""

    handle: int = number(1)


@message(command=8, event=5, about=Subject.NOTHING)
class ReservationLost:
    """The receiver lost the room (its engine is gone, or it was not filled or used in time)."""

    handle: int = number(1)
    why: Why | None = number(2, default=None)


@message(command=10, event=10)
class JoinGroup:
    """The leader of `group` by the order (`epoch`, `plan_version`) asks a member what it brings; `MemberReady` answers
    as soon as the member follows that order or a newer one of the group, and has an engine.

    `member` is the receiver's index in all that the group says of members: its own as long as it is in the group,
    whatever later orders add or remove. The leader's is 0.
    """

    epoch: int = number(1)
    plan_version: int = number(2)
    group: int = number(3)
    member: int = number(4)


@message()
class MemberEngine:
    """The engine of the group's member `member`, and what it said peers need to reach its memory (`agent`)."""

    member: int = number(1)
    engine: Address = number(2)
    agent: bytes = number(3)


@message(command=11, event=11)
class MemberReady:
    """A member's engine is ready to take steps of the group; said anew whenever its agent, layout or slots change.

    `available_slots` may be set aside for guests now. `adapters` are the digests of those that its engine has.
    """

    group: int = number(1)
    engine: Address = number(2)
    agent: bytes = number(3)
    layout: int = number(4)
    capacity_slots: int = number(5)
    available_slots: int = number(6)
    max_positions: int = number(7)
    weights_digest: str = number(8)
    kv_dtype: str = number(9)
    adapters: tuple[str, ...] = number(12, default=())


@message(command=12, event=12)
class MeetMembers:
    """The engines of all other members: meet those that are new, or whose agent changed. `MembersMet` answers with the
    same `question`, which the leader asks once. A member that has no engine just then does not answer.
    """

    group: int = number(1)
    engines: tuple[MemberEngine, ...] = number(2)
    question: int = number(3, default=0)


@message(command=13, event=13)
class MembersMet:
    """The engine can reach those of the members `met`, with the agents that `MeetMembers` said; `detail` says why not
    the others.
    """

    group: int = number(1)
    met: I32 = number(2, default_factory=i32)
    detail: str = number(3, default="")
    question: int = number(4, default=0)


@message(command=14, event=14, about=Subject.DISPATCHERS_REQUEST)
class OpenGuest:
    """Open a sequence of the leader's, and set `slots` token slots aside for what will lie here of it.

    `sequence` is its number at all members' engines, `key` the request's with its tenant, for ids can be guessed (""
    where it has none). The other fields are `Open`'s and `Place`'s. KV of its first `elsewhere_tokens` tokens lies here
    or at other members, or was lost there: tokens `[held_start[i], held_stop[i])` lie here, in order. A guest that is
    open is opened anew, with other tokens: what is held stays, also while rows compute tokens before it, and all else
    that was written here is void.
    """

    group: int = number(1)
    sequence: int = number(2)
    dispatcher: Address = number(3)
    request: int = number(4)
    attempt: int = number(5)
    key: str = number(6)
    tokens: I32 = number(7)
    prompt_tokens: int = number(8)
    max_tokens: int = number(9)
    slots: int = number(10)
    sampling: SamplingParams = number(11, default_factory=SamplingParams)
    stop_ids: I32 = number(12, default_factory=i32)
    elsewhere_tokens: int = number(13, default=0)
    why: Why | None = number(14, default=None)
    adapter: str = number(17, default="")
    held_start: I64 = number(18, default_factory=i64)
    held_stop: I64 = number(19, default_factory=i64)


@message(command=15, event=15)
class GrowGuest:
    """Have `slots` token slots set aside for the guest in all, those in use included."""

    group: int = number(1)
    sequence: int = number(2)
    slots: int = number(3)


@message(command=16, event=16)
class GuestSlots:
    """So many token slots are set aside for the guest here, those in use included. `available_slots` more are free.

    To the first `OpenGuest`: KV of tokens `[held_start[i], held_stop[i])` lies here, in order, from an earlier attempt
    whose leader is gone.
    """

    group: int = number(1)
    sequence: int = number(2)
    slots: int = number(3)
    available_slots: int = number(4)
    held_start: I64 = number(5, default_factory=i64)
    held_stop: I64 = number(6, default_factory=i64)


@message(command=17, event=17, about=Subject.DISPATCHERS_REQUEST)
class GuestRefused:
    """There is no room for the guest, or no more; what was set aside before stays. `available_slots` are free.

    `dispatcher`, `request` and `attempt` are what the guest was opened for; None where it is not known here.
    """

    group: int = number(1)
    sequence: int = number(2)
    available_slots: int = number(3, default=0)
    why: Why | None = number(4, default=None)
    dispatcher: Address | None = number(5, default=None)
    request: int = number(6, default=0)
    attempt: int = number(7, default=0)


@message(command=18, event=18)
class CloseGuest:
    """Forget the guest: its slots are free once no step uses them. `GuestClosed` answers."""

    group: int = number(1)
    sequence: int = number(2)


@message(command=19, event=19)
class GuestClosed:
    """Nothing of the guest is left here. `available_slots` are free."""

    group: int = number(1)
    sequence: int = number(2)
    available_slots: int = number(3)


@message(command=20, event=20, hot=True)
class GroupStep:
    """The receiver's part of one iteration of its group: see `Step`, with members for peers and positions for slots.

    Row i computes tokens `start[i]:stop[i]:stride[i]` of guest `sequence[i]` as its master, or as its stripe of a ring.
    Span j: tokens `span_start[j]:span_stop[j]:span_stride[j]` of row `span_row[j]` lie at member `span_member[j]`, or
    are its stripe (of a ring's spans, those with `span_asked[j]` = 1 lie there). Served part k: the queries
    `serve_start[k]:serve_stop[k]:serve_stride[k]` of member `serve_member[k]`'s row of guest `serve_sequence[k]` attend
    over the tokens `[serve_span_start, serve_span_stop)` that lie here, for those l with `serve_span_part[l]` = k. Of a
    ring, tokens `[keep_start, keep_stop)` of row `keep_row` stay here after the step.

    `exchange` numbers the group's steps; a member computes them in the order in which they come.
    """

    group: int = number(1)
    exchange: int = number(2)
    kind: GroupKind = number(3)
    sequence: I64 = number(4, default_factory=i64)
    start: I64 = number(5, default_factory=i64)
    stop: I64 = number(6, default_factory=i64)
    sample: I8 = number(7, default_factory=i8)
    stride: I64 = number(8, default_factory=i64)
    span_row: I32 = number(9, default_factory=i32)
    span_start: I64 = number(10, default_factory=i64)
    span_stop: I64 = number(11, default_factory=i64)
    span_member: I32 = number(12, default_factory=i32)
    span_stride: I64 = number(13, default_factory=i64)
    serve_sequence: I64 = number(14, default_factory=i64)
    serve_start: I64 = number(15, default_factory=i64)
    serve_stop: I64 = number(16, default_factory=i64)
    serve_member: I32 = number(17, default_factory=i32)
    serve_span_part: I32 = number(18, default_factory=i32)
    serve_span_start: I64 = number(19, default_factory=i64)
    serve_span_stop: I64 = number(20, default_factory=i64)
    keep_row: I32 = number(21, default_factory=i32)
    keep_start: I64 = number(22, default_factory=i64)
    keep_stop: I64 = number(23, default_factory=i64)
    span_asked: I8 = number(24, default_factory=i8)
    serve_stride: I64 = number(25, default_factory=i64)
    """Empty means stride 1 for every part."""


@message(command=21, event=21, hot=True)
class GroupStepDone:
    """The only answer to a `GroupStep`: what the member's engine said of its part. `refusal`: nothing was done."""

    group: int = number(1)
    exchange: int = number(2)
    done: StepDone | None = number(3, default=None)
    refusal: str = number(4, default="")


@message(command=22, event=22)
class CancelGroupSteps:
    """End the group's steps up to `exchange`, for a member is gone or their sequence is: all rows leave, at the next
    safepoint, and nothing is served any more. The steps are answered as ever.
    """

    group: int = number(1)
    exchange: int = number(2)


@message(command=23, event=23, about=Subject.NOTHING)
class GuestsLost:
    """The member has nothing of the group's guests any more: its engine is gone, or it follows another order. Steps
    that had no answer get none. `suspects`: guests with a part in the step of `exchange` that its engine computed when
    it crashed, one of which may have crashed it; empty where none is to blame.
    """

    group: int = number(1)
    why: Why | None = number(2, default=None)
    exchange: int = number(3, default=0)
    suspects: I64 = number(4, default_factory=i64)


@message(command=24, event=24)
class GuestReassigned:
    """The guest's request was adopted: it is attempt `attempt` of that dispatcher's `request` from now on."""

    group: int = number(1)
    sequence: int = number(2)
    dispatcher: Address = number(3)
    request: int = number(4)
    attempt: int = number(5)


DIALING = Address("dialing", "")
"""Where a core sends `DialPeer`: the dialer of its own process."""


@dataclass(frozen=True, slots=True)
class DialPeer:
    """To `DIALING`: open a stream to `peer` unless there is one. `Joined` or nothing answers."""

    peer: Address
