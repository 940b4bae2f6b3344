"""What rank 0 tells the others arrives in order, and no earlier than there is work."""

import socket
from typing import Any

import pytest

from dunlin.engine.ranks.errors import RankGone
from dunlin.engine.ranks.frames import RankReceiver, RankSender
from dunlin.engine.ranks.part_copies import PartCopy, SlotRun
from dunlin.messages.engine import Close, TransferDone
from dunlin.messages.types import TransferStatus
from tests.engine.commands import make_open, make_step
from tests.engine.ranks.two_ranks import together


def test_commands_ends_of_transfers_and_work_arrive_in_order() -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    sender = RankSender([ours for ours, _ in pairs])
    told = [make_open(3), TransferDone(5, TransferStatus.OK, 7, 8), make_step(1, (3, 0, 10, 0))]
    for each in told:
        sender.tell(each)
    copy = PartCopy((SlotRun(1, 7, 3, 64), SlotRun(2, 0, 1, 64)), to_kv=True)
    sender.tell_copy(copy)
    sender.tell_work()
    sender.tell(Close(3))
    for ours, theirs in pairs:
        receiver = RankReceiver(theirs)
        assert [receiver.next() for _ in range(5)] == [*told, copy, None]
        ours.close()
        with pytest.raises(EOFError):  # what was kept for the next work is not missed
            receiver.next()
        theirs.close()


def test_much_is_sent_before_there_is_work() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = RankSender([ours]), RankReceiver(theirs)
    much = [make_open(number, [3] * 50_000) for number in range(1, 11)]  # 200 kB each

    def tell() -> list[Any]:
        for each in much:
            sender.tell(each)
        return []

    heard, _ = together(lambda: [receiver.next() for _ in range(6)], tell)
    assert heard == much[:6]
    ours.close()
    theirs.close()


def test_a_rank_that_has_ended_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(RankGone):
        RankSender([ours]).tell_work()
