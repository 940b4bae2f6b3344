"""What the etcd watch tells a core: which processes are registered, and whether this process leads.

These messages stay inside one process (from the watcher in `dunlin/membership` to the core), so no proto file mirrors
them. A lease is a hint: a process that lost it is probed (`dunlin/membership/failure_detector.py`) before a core hears
of it.
"""

from dataclasses import dataclass

from dunlin.effects import Address


@dataclass(frozen=True, slots=True)
class Member:
    """One registered process. `endpoint` is the `host:port` of its gRPC door, `node` the machine where `pid` counts."""

    address: Address
    endpoint: str
    node: str
    pid: int


@dataclass(frozen=True, slots=True)
class MembersReset:
    """The whole membership, ordered by role and name: forget all others. Comes first, and after a lost history.

    A process that was a member before and is not registered now stays one until a probe finds no process there.
    """

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class MemberUp:
    """A process registered or changed its record. The same address may come up again after its lease was lost."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberDown:
    """`address` is no member any more: its registration ended and a probe found no process, or its name was taken."""

    address: Address


@dataclass(frozen=True, slots=True)
class Elected:
    """This process leads from now on. `epoch` is the create revision of its election key: each term's is higher."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """The term `epoch` of this process is over, at the latest when its lease may have run out."""

    epoch: int


MemberMessage = MembersReset | MemberUp | MemberDown
MembershipMessage = MemberMessage | Elected | Deposed
