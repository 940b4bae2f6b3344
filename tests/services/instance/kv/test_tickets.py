"""Tickets: one number space, and each waiter is found by its own kind alone."""

from dunlin.effects import Address
from dunlin.messages.types import HostRegion, Priority, Region
from services.instance.kv.tickets import (
    ArrivalClaim,
    ArrivalTransfer,
    HostClaim,
    HostReservation,
    PendingTransfer,
    Question,
    RegionTransfer,
    Tickets,
    TransferPurpose,
)
from services.instance.sequence.sequence import KeptHostRegion, Sequence
from services.instance.sequence.table import SequenceTable
from tests.services.instance.bench import D, make_place

REGION = Region(0, 4, 0, 16)
KEPT = KeptHostRegion(REGION, HostRegion(1, 1, 0, 64, 0), Address("kvstore", "k", 3), b"")


def make_sequences() -> tuple[Sequence, Sequence]:
    sequences = SequenceTable()
    return sequences.add(D, make_place(1)), sequences.add(D, make_place(2))


def test_a_waiter_is_taken_once_and_only_as_what_it_is() -> None:
    tickets = Tickets()
    asked, moves = tickets.add(ArrivalClaim(7)), tickets.add(ArrivalTransfer(7))
    assert (asked, moves) == (1, 2)
    assert tickets.take(asked, ArrivalTransfer) is None, "an engine that answers a kvstore's ticket reaches no room"
    assert tickets.take(asked, ArrivalClaim) == ArrivalClaim(7)
    assert tickets.take(asked, ArrivalClaim) is None
    assert tickets.take(moves, ArrivalTransfer) == ArrivalTransfer(7)
    assert tickets.add(RegionTransfer(1)) == 3, "a ticket is never used again"


def test_a_sequence_that_withdraws_waits_for_no_answer_but_still_for_its_moves() -> None:
    tickets = Tickets()
    first, second = make_sequences()
    reservation = HostReservation(first, TransferPurpose.SPILL, REGION, b"", Priority.KV)
    theirs = [tickets.add(one) for one in (reservation, HostClaim(first), HostClaim(second))]
    move = tickets.add(PendingTransfer(first, TransferPurpose.CHECKPOINT, KEPT, 1))
    tickets.withdraw(first)
    assert [tickets.take(ticket, Question) for ticket in theirs] == [None, None, HostClaim(second)]
    assert tickets.take(move, PendingTransfer) is not None


def test_all_of_a_kind_are_taken_oldest_first() -> None:
    tickets = Tickets()
    first, second = make_sequences()
    asked = [HostClaim(second), HostReservation(first, TransferPurpose.CHECKPOINT, REGION, b"", Priority.CHECKPOINT)]
    for waiter in (ArrivalClaim(1), asked[0], RegionTransfer(1), asked[1]):
        tickets.add(waiter)
    assert tickets.take_all(Question) == asked
    assert tickets.take_all(Question) == []
    assert [waiter for _, waiter in tickets.of(ArrivalClaim)] == [ArrivalClaim(1)]
