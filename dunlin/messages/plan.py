"""Global manager ↔ instance: an instance's group, its layers, which sequences move away; and what tools ask a manager.

Orders are ordered by (epoch, plan version), moves and changes of layers by (epoch, ticket); older ones change nothing.
"""

from enum import IntEnum

from dunlin.effects import Address
from dunlin.messages.declare import Method, Parties, Subject, message, number
from dunlin.messages.types import I32, GroupKind, GroupRole, Why, i32

PARTIES = Parties("Plan", dialers=("global_manager",), acceptor="instance")


@message(command=2, about=Subject.RECEIVER)
class GroupOrder:
    """Be `part` of group `group`, whose members step together in this order; the first is the leader.

    `layers` empty means: hold every layer. Of an ELASTIC group the order is the lease: a member computes for that
    leader alone until a newer order comes, and an order with the same group and leader ends nothing that runs.
    """

    epoch: int = number(1)
    plan_version: int = number(2)
    group: int = number(3)
    kind: GroupKind = number(4)
    part: GroupRole = number(5)
    members: tuple[Address, ...] = number(6)
    layers: I32 = number(7, default_factory=i32)
    why: Why | None = number(8, default=None)


@message(event=2)
class GroupOrderDone:
    """The member is what the order says."""

    epoch: int = number(1)
    plan_version: int = number(2)


@message(event=3, about=Subject.NOTHING)
class GroupOrderRefused:
    """The order was stale or asks for what the member cannot do; it stays what it was."""

    epoch: int = number(1)
    plan_version: int = number(2)
    reason: str = number(3)
    why: Why | None = number(4, default=None)


@message(command=3, about=Subject.RECEIVER)
class Evacuate:
    """Move sequences that hold (or wait for) about `slots` slots to `target`, while they run; of more than `most_slots`
    none (0: one sequence moves however many it holds).

    The instance chooses which: the cheapest to move first. `ticket` numbers the moves of a term.
    """

    epoch: int = number(1)
    ticket: int = number(2)
    target: Address = number(3)
    slots: int = number(4)
    why: Why | None = number(5, default=None)
    most_slots: int = number(6, default=0)


@message(event=4)
class EvacuateDone:
    """Every sequence that was chosen has left, ended, or stays after all; `detail` says why those stay, or why none was
    chosen.
    """

    epoch: int = number(1)
    ticket: int = number(2)
    moved: int = number(3, default=0)
    moved_slots: int = number(4, default=0)
    stayed: int = number(5, default=0)
    detail: str = number(6, default="")


@message(command=4, about=Subject.RECEIVER)
class Drain:
    """Take nothing new from now on, until `Undrain`; what runs goes on, and leaves by `Evacuate`."""

    epoch: int = number(1)
    ticket: int = number(2)
    why: Why | None = number(3, default=None)


@message(command=5, about=Subject.RECEIVER)
class Undrain:
    """Take requests again."""

    epoch: int = number(1)
    ticket: int = number(2)
    why: Why | None = number(3, default=None)


@message()
class HandoffTarget:
    """An instance that may take sequences over, and the slots that were free there when the manager looked."""

    address: Address = number(1)
    free_slots: int = number(2)
    capacity_slots: int = number(3)


@message(command=6, about=Subject.RECEIVER)
class Handoff:
    """Hand sequences over to one of these once they have their first token; a newer one of the term replaces it.

    Empty: no instance takes any. It is not answered: what leaves is seen in the reports.
    """

    epoch: int = number(1)
    ticket: int = number(2)
    rooms: tuple[HandoffTarget, ...] = number(3, default=())
    why: Why | None = number(4, default=None)


@message(event=5)
class DrainDone:
    """Whether the instance drains now; `detail` is not empty when it did not do what it was told."""

    epoch: int = number(1)
    ticket: int = number(2)
    draining: bool = number(3)
    detail: str = number(4, default="")


@message(command=7, about=Subject.RECEIVER)
class RemapLayers:
    """Hold the layers `layers` and no others; empty: all of them. The weights of the others become token slots.

    Sequences stay, with the KV of all layers, but no step is composed while a layer is missing. An instance that is in
    no group which computes with the layers that it has restores the others by itself after
    `instance.remap.restore_after_s`. A newer order takes the place of one that is not done.
    """

    epoch: int = number(1)
    ticket: int = number(2)
    layers: I32 = number(3, default_factory=i32)
    why: Why | None = number(4, default=None)


@message(event=6)
class RemapLayersDone:
    """The instance holds `layers`, in this layout, with so many slots; `detail` says why not what was ordered."""

    epoch: int = number(1)
    ticket: int = number(2)
    layout: int = number(3, default=0)
    layers: I32 = number(4, default_factory=i32)
    slots: int = number(5, default=0)
    detail: str = number(6, default="")


@message(event=7, about=Subject.SENDER)
class AskMembers:
    """A leader's wish: its group lacks `slots` token slots; with a newer GroupOrder the manager may add members.

    A wish stands until it is fulfilled, or a newer one of the leader says 0 slots.
    """

    epoch: int = number(1)
    plan_version: int = number(2)
    group: int = number(3)
    slots: int = number(4)
    why: Why | None = number(5, default=None)


@message(event=8, about=Subject.SENDER)
class ReturnMembers:
    """A leader gives members back before the manager asks: nothing of its sequences lies there, and no step names them.

    All of them but itself: the group may be dissolved. `cannot_join`: it needs more perhaps, but these have not joined
    for too long, or do not end a step that they were told to end (what lay there is lost), and the manager is not to
    count on their slots. The leader itself may be among them: its group ends.
    """

    epoch: int = number(1)
    plan_version: int = number(2)
    group: int = number(3)
    members: tuple[Address, ...] = number(4, default=())
    why: Why | None = number(5, default=None)
    cannot_join: bool = number(6, default=False)


class DrainOutcome(IntEnum):
    """A manager's answer to a tool that wants an instance drained."""

    ORDERED = 0
    ALREADY = 1
    NOT_LEADER = 2
    UNKNOWN_INSTANCE = 3
    NOWHERE_TO_GO = 4


@message()
class DrainRequest:
    """A tool's wish: empty the instance called `instance`, or (`undo`) let it take requests again."""

    instance: str = number(1)
    undo: bool = number(2, default=False)


@message()
class DrainReply:
    """What became of the wish; progress is the instance's own report. `others` may take what it holds."""

    outcome: DrainOutcome = number(1)
    detail: str = number(2, default="")
    instance: Address | None = number(3, default=None)
    others: tuple[Address, ...] = number(4, default=())


MANAGER_SERVICE = "dunlin.v1.GlobalManager"
"""What tools ask a global manager; only the one that leads does it."""
DRAIN = Method(MANAGER_SERVICE, "Drain", DrainRequest, DrainReply)
