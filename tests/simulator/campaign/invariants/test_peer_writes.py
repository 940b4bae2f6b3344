"""Slots that are free while a peer's engine writes them break I8; those that are held, or fenced, do not."""

from typing import Any

import pytest

from dunlin.effects import Address, Message
from dunlin.messages.engine import EngineExited, Transfer, TransferDone, Unsupported
from dunlin.messages.types import Region, TransferKind, TransferStatus, i64
from services.instance.kv.residency import SlotUse
from simulator.campaign.invariants.peer_writes import PeerWriteWatcher
from simulator.campaign.violation import Violation
from tests.simulator.campaign.campaign_bench import Campaign


class Writing:
    """An instance's engine writes slots 4 to 8 of another's, which hold a room of eight slots."""

    def __init__(self, connected: bool = True) -> None:
        self.campaign = Campaign(instances=2)
        self.watcher = PeerWriteWatcher(self.campaign.cluster, self.campaign.clients, self.campaign.faults)
        self.source, self.target = self.campaign.cluster.of_role("instance")
        self.core = self.campaign.cluster.core(self.target)
        self.core.slot_table.allocate("room", 8, SlotUse.RESERVED, at=0)
        if connected:
            self.campaign.world.connect(self.source, self.target)
        engines = [Address("engine", one.name) for one in (self.source, self.target)]
        slots = {"peer": engines[1], "peer_extent_start": i64([4]), "peer_extent_length": i64([4])}
        region = Region(0, 2, 0, 4)
        copy = Transfer(5, TransferKind.SLAB_TO_PEER, 1, region, i64([0]), i64([4]), **slots)
        self.before(self.source, engines[0], copy)

    def before(self, sender: Address, to: Address, message: Message) -> None:
        self.watcher.before(self.campaign.event(sender, to, message))

    def look(self) -> None:
        self.watcher.after(self.campaign.event(self.source, self.target, Unsupported("nothing")))


def test_a_room_that_is_freed_while_it_is_written_breaks_i8() -> None:
    writing = Writing()
    writing.look()
    writing.core.slot_table.release_span("room", 0, 4)
    writing.look()
    writing.core.slot_table.release_span("room", 7, 8)
    with pytest.raises(Violation, match=r"^I8 at .* writes \[\(4, 4\)\] of .*, some of which are free"):
        writing.look()


@pytest.mark.parametrize(
    "answer",
    [TransferDone(5, TransferStatus.OK), Unsupported("Transfer", ticket=5), EngineExited(0, 9)],
    ids=lambda answer: type(answer).__name__,
)
def test_a_room_may_be_freed_once_the_copy_has_ended(answer: Any) -> None:
    writing = Writing()
    writing.before(Address("engine", writing.source.name), writing.source, answer)
    writing.core.slot_table.release("room")
    writing.look()


def test_a_room_may_be_freed_that_a_fenced_engine_or_one_of_another_life_cannot_reach() -> None:
    alone = Writing(connected=False)
    alone.core.slot_table.release("room")
    alone.look()
    replaced = Writing()
    replaced.core.slot_table.release("room")
    replaced.campaign.cluster.engine_supervisors[replaced.target].restart()
    replaced.look()
