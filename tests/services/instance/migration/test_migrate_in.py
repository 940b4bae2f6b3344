"""Room for a sequence that comes from another node, and a host tier that is lost while it is on its way."""

import pytest

from dunlin.effects import Address, Gone, Joined, Send
from dunlin.messages.dispatch import Accepted
from dunlin.messages.engine import Transfer, TransferDone
from dunlin.messages.group import Fill, Filled, Reserve, Reserved
from dunlin.messages.pool import FindRegions, RegionsFound, ReleaseRegion, TierReady
from dunlin.messages.types import HostRegion, KeptRegion, Region, TransferStatus
from services.instance.kv.residency import SlotUse
from services.instance.sequence.states import SequenceState
from tests.services.instance.bench import ENGINE, D, Direct, make_place, of, only, ready_core

SOURCE = Address("instance", "source", 7)
KVSTORE = Address("kvstore", "kv", 4)
NEXT_KVSTORE = Address("kvstore", "kv", 8)
REGION = KeptRegion(Region(0, 2, 0, 32), HostRegion(3, 1, 0, 2048, 9), b"chain")


def filled() -> Direct:
    """A room with 32 tokens in it, from a region of this node's tier that was claimed for it."""
    direct = ready_core()
    direct.give(KVSTORE, Joined())
    direct.give(KVSTORE, TierReady("/tier", 1 << 16))
    reserve = Reserve(1, 40, 0, 2, 1, 1, None, f"{D}/1", D, 1, 1, longest=48, weights_digest="fake", kv_dtype="float32")
    assert only(Reserved, direct.give(SOURCE, reserve)).handle == 1
    ask = only(FindRegions, direct.give(SOURCE, Fill(1, 32)))
    move = only(Transfer, direct.give(KVSTORE, RegionsFound(ask.ticket, (REGION,))))
    direct.give(ENGINE, TransferDone(move.ticket, TransferStatus.OK))
    return direct


def handed(direct: Direct) -> list[Send]:
    return direct.give(D, make_place(tokens=40, attempt=2, handle=1))


@pytest.mark.parametrize("is_back", [False, True])
def test_regions_that_were_claimed_for_a_room_are_lost_with_their_kvstore(is_back: bool) -> None:
    direct = filled()
    direct.give(KVSTORE, Gone("killed"))
    if is_back:
        direct.give(NEXT_KVSTORE, Joined())
        direct.give(NEXT_KVSTORE, TierReady("/tier", 1 << 16))
    sends = handed(direct)
    assert only(Accepted, sends).attempt == 2
    assert of(ReleaseRegion, sends) == []
    assert direct.core.sequences.by_arrival()[0].kept == []


def test_without_a_loss_they_are_released_or_kept_as_its_tokens_say() -> None:
    assert only(ReleaseRegion, handed(filled())).handle == 3, "the chain is another text's"


def test_a_dispatcher_that_knows_fewer_tokens_than_lie_in_the_room_has_all_computed_again() -> None:
    direct = filled()  # as one that slept while the tokens came, and was told of the room first
    sends = direct.give(D, make_place(tokens=24, attempt=2, handle=1))
    assert only(Accepted, sends).attempt == 2
    sequence = direct.core.sequences.by_arrival()[0]
    assert (sequence.state, len(sequence.tokens), sequence.valid) == (SequenceState.RUNNING, 24, 0)
    direct.core.lifecycle.kv_cache.check_integrity()


def test_a_new_kvstore_that_speaks_before_the_old_ones_end_is_seen_replaces_it() -> None:
    direct = filled()
    direct.give(NEXT_KVSTORE, Joined())
    direct.give(NEXT_KVSTORE, TierReady("/tier", 1 << 16))
    assert of(ReleaseRegion, handed(direct)) == []
    direct.give(KVSTORE, Gone("killed"))
    assert direct.core.host_cache.kvstore == NEXT_KVSTORE
    assert direct.core.host_cache.usable


@pytest.mark.parametrize("is_next_there", [True, False])
def test_a_kvstore_that_slept_and_was_replaced_is_not_taken_back(is_next_there: bool) -> None:
    direct = filled()
    direct.give(NEXT_KVSTORE, Joined())
    direct.give(NEXT_KVSTORE, TierReady("/tier", 1 << 16))
    if not is_next_there:
        direct.give(NEXT_KVSTORE, Gone("stream reset"))
    stale = direct.core.report().stale_total
    direct.give(KVSTORE, Joined())
    assert direct.give(KVSTORE, TierReady("/tier", 1 << 16)) == []
    assert direct.core.host_cache.kvstore == (NEXT_KVSTORE if is_next_there else None)
    assert direct.core.report().stale_total == stale + 1


@pytest.mark.parametrize("keeper", [KVSTORE, NEXT_KVSTORE])
def test_what_lies_in_a_kvstore_that_was_replaced_is_not_read_in_its_successors_memory(keeper: Address) -> None:
    direct = filled()
    direct.give(NEXT_KVSTORE, Joined())
    direct.give(NEXT_KVSTORE, TierReady("/tier", 1 << 16))
    rest = KeptRegion(Region(0, 2, 32, 40), HostRegion(4, 1, 2048, 512, 9), b"rest")
    sends = direct.give(SOURCE, Fill(1, 40, (rest,), keeper))
    if keeper == NEXT_KVSTORE:
        assert only(Transfer, sends).host == rest.host
        return
    assert of(Transfer, sends) == []
    answer = only(Filled, sends)
    assert (answer.tokens, "kvstore/kv@4" in answer.detail) == (32, True)


def test_an_attempt_that_is_not_newer_than_the_rooms_own_does_not_get_it() -> None:
    direct = filled()
    direct.give(D, make_place(tokens=40, attempt=1, handle=1))
    assert direct.core.slot_table.count(SlotUse.RESERVED) == 40
    assert direct.core.sequences.by_arrival()[0].valid == 0
