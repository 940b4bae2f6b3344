"""Which writers have a stream, which lost it, and which process ends must come before quarantined room is reused.

A registration that ended is a hint; a process that ended, or another incarnation of its name, is proof. Where no
process id is known the hint must do. Knows no region and no byte.
"""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.membership import Member

PROCESSES = Address("process", "")
"""The watcher of the node's processes: takes `AwaitProcessEnd`, answers `ProcessEnded`."""


@dataclass(frozen=True, slots=True)
class AwaitProcessEnd:
    """Asks for `ProcessEnded` once the process `pid`, known as `writer`, has ended."""

    writer: Address
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """The process that was `writer` runs no more."""

    writer: Address


@dataclass(frozen=True, slots=True)
class WriterGraceOver:
    """The regions of `writer` that were committed before this absence have outlived its stream long enough."""

    writer: Address
    absence: int


class ConnectedWriters:
    """Owns the set of writers with a stream, indexed by name: there may be thousands."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], dict[Address, None]] = {}

    def __contains__(self, writer: Address) -> bool:
        return writer in self._named.get((writer.role, writer.name), ())

    def add(self, writer: Address) -> None:
        """Its stream is open."""
        self._named.setdefault((writer.role, writer.name), {})[writer] = None

    def remove(self, writer: Address) -> None:
        """Its stream ended. Raises KeyError if there was none."""
        named = self._named[writer.role, writer.name]
        del named[writer]
        if not named:
            del self._named[writer.role, writer.name]

    def incarnations(self, writer: Address) -> list[Address]:
        """Those of the same process, in the order of joining."""
        return list(self._named.get((writer.role, writer.name), ()))


class WriterAbsences:
    """Numbers the absences of writers; keeps the process ids from membership, and the registrations that ended."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._absences = 0
        self._pids: dict[Address, int] = {}
        self._unregistered: dict[Address, None] = {}

    def __len__(self) -> int:
        """How many writers are remembered at all."""
        return len(self._pids.keys() | self._unregistered.keys())

    def record_member(self, member: Member) -> None:
        """It is registered; note the process id of an instance on this node."""
        self._unregistered.pop(member.address, None)
        if member.address.role == "instance" and member.node == self._node and member.pid > 0:
            self._pids[member.address] = member.pid

    def forget(self, writer: Address) -> None:
        """Nothing of this writer is left."""
        self._pids.pop(writer, None)
        self._unregistered.pop(writer, None)

    def registration_ended(self, writer: Address) -> None:
        """The writer is registered no more."""
        self._unregistered[writer] = None

    def has_registration_ended(self, writer: Address) -> bool:
        """Whether its registration ended."""
        return writer in self._unregistered

    def next_absence(self) -> int:
        """A stream ended: the number of this absence."""
        self._absences += 1
        return self._absences

    def pid_of(self, writer: Address) -> int | None:
        """The writer's process id, if it is one of this node's."""
        return self._pids.get(writer)

    def with_process_id(self) -> list[Address]:
        """Every writer whose process id is known, in the order of learning."""
        return list(self._pids)
