"""What this instance waits for from its kvstore and from its engine's copies: one number space, one waiter per ticket.

A waiter says what is waited for, by its class, and for what: a sequence, the handle of an incoming or the number
of an outgoing migration.
Sends nothing and decides nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from dunlin.messages.types import Priority, Region
from services.instance.sequence.sequence import KeptHostRegion, Sequence


class TransferPurpose(Enum):
    """What a region is copied for."""

    SPILL = "spill"  # the KV of a preempted sequence is copied out
    RESTORE = "restore"  # the KV of a sequence is copied back
    CHECKPOINT = "checkpoint"  # a running sequence is copied beside its steps


@dataclass(frozen=True, slots=True)
class Question:
    """Waits for the kvstore's answer about a sequence."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class HostReservation(Question):
    """Waits for room in the host tier: `RegionReserved` or `RegionRefused`."""

    purpose: TransferPurpose
    region: Region
    chain: bytes
    priority: Priority


@dataclass(frozen=True, slots=True)
class HostClaim(Question):
    """Waits for regions that earlier attempts of the request left in the host tier: `RegionsFound`."""


@dataclass(frozen=True, slots=True)
class ArrivalClaim:
    """Waits for regions that were sent to this node for the incoming migration of that handle: `RegionsFound`."""

    handle: int


@dataclass(frozen=True, slots=True)
class RegionTransfer:
    """Waits until another kvstore has the regions of outgoing migration number `migration`: `RegionsSent`."""

    migration: int


@dataclass(frozen=True, slots=True)
class PendingTransfer:
    """Waits for the engine's copy of one region: `TransferDone`. `number` is the sequence's in the engine then."""

    sequence: Sequence
    purpose: TransferPurpose
    kept: KeptHostRegion
    number: int


@dataclass(frozen=True, slots=True)
class ArrivalTransfer:
    """Waits for the engine's copy of one region into the slots of the incoming migration `handle`: `TransferDone`."""

    handle: int


@dataclass(frozen=True, slots=True)
class PeerCopy:
    """Waits until the engine has written `region` of a sequence into a peer's slots, for outgoing migration number
    `migration`: `TransferDone`.
    """

    sequence: Sequence
    migration: int
    region: Region
    chain: bytes


@dataclass(frozen=True, slots=True)
class ArrivalCheck:
    """Waits until the engine has hashed what a peer wrote into the slots of incoming migration `handle`:
    `TransferDone`.
    """

    handle: int


Waiter = Question | ArrivalClaim | RegionTransfer | PendingTransfer | ArrivalTransfer | PeerCopy | ArrivalCheck
W = TypeVar("W", bound=Waiter)


class Tickets:
    """Owns the waiters, oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiter] = {}
        self._last = 0

    def add(self, waiter: Waiter) -> int:
        """Wait; the new ticket, from 1, which is never used again."""
        self._last += 1
        self._waiting[self._last] = waiter
        return self._last

    def is_waiting(self, ticket: int, kind: type[Waiter]) -> bool:
        """Whether a waiter of this `kind` waits with that ticket."""
        return isinstance(self._waiting.get(ticket), kind)

    def take(self, ticket: int, kind: type[W]) -> W | None:
        """The waiter of that ticket, which waits no more; None: none of this `kind` waits with it."""
        waiter = self._waiting.get(ticket)
        if not isinstance(waiter, kind):
            return None
        del self._waiting[ticket]
        return waiter

    def take_all(self, kind: type[W]) -> list[W]:
        """All waiters of this `kind`, which wait no more."""
        taken = dict(self.of(kind))
        for ticket in taken:
            del self._waiting[ticket]
        return list(taken.values())

    def withdraw(self, sequence: Sequence) -> None:
        """The sequence's questions need no answer any more."""
        for ticket in [ticket for ticket, question in self.of(Question) if question.sequence is sequence]:
            del self._waiting[ticket]

    def of(self, kind: type[W]) -> Iterator[tuple[int, W]]:
        """Each (ticket, waiter) of this `kind`."""
        for ticket, waiter in self._waiting.items():
            if isinstance(waiter, kind):
                yield ticket, waiter
