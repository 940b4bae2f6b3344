"""What the etcd watch tells a core: who is registered, and whether this process leads.

These messages stay inside one process (from the watcher in `dunlin/membership` to the core), so no proto file mirrors
them. A lease is a hint: `MemberDown` says that a registration ended, not that the process is dead.
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
    """The whole membership, ordered by role and name: forget everybody else. Comes first, and after a lost history."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class MemberUp:
    """A process registered or changed its record. The same address may come up again after its lease was lost."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberDown:
    """The registration of `address` ended: its lease ran out, it left, or a newer incarnation took its name."""

    address: Address


@dataclass(frozen=True, slots=True)
class Elected:
    """This process leads from now on. `epoch` is the create revision of its election key: each term's is higher."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """The term `epoch` of this process is over, at the latest when its lease may have run out."""

    epoch: int


MembershipMessage = MembersReset | MemberUp | MemberDown | Elected | Deposed
