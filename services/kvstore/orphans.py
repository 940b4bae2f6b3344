"""Which writers fell silent, and which processes to wait for before their quarantined room is used again.

A registration that ended is a hint; a process that ended, or another incarnation of its name, is proof. Where no
process id is known the hint must do. Knows no region and no byte.
"""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.membership import Member

PROCESSES = Address("process", "")
"""Who watches the node's processes for this core: takes `AwaitEnd`, answers `ProcessEnded`."""


@dataclass(frozen=True, slots=True)
class AwaitEnd:
    """Tell me when the process `pid`, known as `writer`, has ended."""

    writer: Address
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The process that was `writer` runs no more."""

    writer: Address


@dataclass(frozen=True, slots=True)
class GraceOver:
    """The committed regions of `writer` have outlived its stream long enough; `absence` says which absence."""

    writer: Address
    absence: int


class Orphans:
    """Writers without a stream, by the number of their absence; and the process ids that membership told."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._absences = 0
        self._absent: dict[Address, int] = {}
        self._pids: dict[Address, int] = {}
        self._lapsed: dict[Address, None] = {}

    def learn(self, member: Member) -> None:
        """It is registered; note the process id of an instance on this node."""
        self._lapsed.pop(member.address, None)
        if member.address.role == "instance" and member.node == self._node and member.pid > 0:
            self._pids[member.address] = member.pid

    def forget(self, writer: Address) -> None:
        """Nothing of this writer is left."""
        self._absent.pop(writer, None)
        self._pids.pop(writer, None)
        self._lapsed.pop(writer, None)

    def lapse(self, writer: Address) -> None:
        """The writer is registered no more."""
        self._lapsed[writer] = None

    def has_lapsed(self, writer: Address) -> bool:
        """Whether its registration ended."""
        return writer in self._lapsed

    def leave(self, writer: Address) -> int:
        """The writer's stream ended; returns the number of this absence."""
        self._absences += 1
        self._absent[writer] = self._absences
        return self._absences

    def come_back(self, writer: Address) -> None:
        """The same process has a stream again."""
        self._absent.pop(writer, None)

    def is_absent(self, writer: Address, absence: int | None = None) -> bool:
        """Whether the writer has no stream (and, if given, whether it still is that absence)."""
        found = self._absent.get(writer)
        return found is not None and absence in (None, found)

    def pid_of(self, writer: Address) -> int | None:
        """The writer's process id, if it is one of this node's."""
        return self._pids.get(writer)

    def known(self) -> list[Address]:
        """Every writer whose process id is known, in the order of learning."""
        return list(self._pids)
