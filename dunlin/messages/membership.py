"""The etcd watch → cores, inside one process: who is registered, and whether this process leads. Never crosses a wire."""

from dataclasses import dataclass

from dunlin.effects import Address


@dataclass(frozen=True, slots=True)
class Member:
    """One registered process. `endpoint` is `host:port` of its gRPC server, `node` the machine that it runs on."""

    address: Address
    endpoint: str
    node: str
    pid: int = 0


@dataclass(frozen=True, slots=True)
class MemberUp:
    """A process registered, or registered again with another record."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberDown:
    """A registration vanished. A hint, not a proof: the process may live."""

    address: Address


@dataclass(frozen=True, slots=True)
class MembersReset:
    """Everything that is registered now; replaces what was known."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Elected:
    """This process leads; `epoch` is the create revision of its election key."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """This process no longer leads, or cannot be sure of it."""

    epoch: int


__all__ = ["Deposed", "Elected", "Member", "MemberDown", "MemberUp", "MembersReset"]
