"""Which way the KV of an outgoing migration goes, and that it keeps to it."""

from typing import Any

from dunlin.effects import Address, Effect, Send
from dunlin.messages.group import Fill, PeerRoom
from dunlin.messages.types import HostRegion, KeptRegion, Region, i64
from services.instance.engine.met_engines import MetEngines
from services.instance.kv.host_cache import HostCacheClient
from services.instance.migration.kv_transfer import KvTransfer
from services.instance.migration.outgoing import MigrationStage, OutgoingMigration
from services.instance.migration.peer_copies import PeerCopies
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence.sequence import KeptHostRegion, Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable
from tests.services.instance.bench import ENGINE, D, make_place

X, K = Address("instance", "x", 9), Address("kvstore", "k", 3)
ROOM = PeerRoom(Address("engine", "x"), b"x's", 7, i64([100]), i64([64]))
TAIL = 8


class HostTier:
    """The tier as `KvExport` shows it: what is asked for is kept at once."""

    usable = True
    kvstore = K

    def is_busy(self, sequence: Sequence) -> bool:
        return False

    def checkpoint_now(self, sequence: Sequence) -> list[Effect]:
        region = Region(0, 4, sequence.kept_tokens, sequence.valid)
        sequence.kept.append(KeptHostRegion(region, HostRegion(1, 1, 0, 64), K, b""))
        return []

    def regions_from(self, sequence: Sequence, start: int) -> tuple[KeptRegion, ...]:
        return tuple(KeptRegion(one.region, one.host) for one in sequence.kept if one.region.start >= start)


def test_what_began_by_the_host_tier_goes_on_by_it_beside_a_room_that_the_engine_cannot_write() -> None:
    """Both engines have agents, and they cannot meet: the target gives a room, and nothing is copied into it."""
    sequences = SequenceTable()
    sequence = sequences.add(D, make_place(1, tokens=40, max_tokens=40))
    sequences.transition(sequence, SequenceState.RUNNING)
    lifecycle: Any = None
    peers = PeerCopies(
        ENGINE, lifecycle, HostCacheClient(ENGINE, 1.0), MetEngines(ENGINE), StepLedger(ENGINE, sequences)
    )
    tier: Any = HostTier()
    transfer = KvTransfer(tier, peers, TAIL)
    migration = OutgoingMigration(1, sequence, X, None, lambda *_: None, room=ROOM, target_kvstore=K, handle=6)
    migration.stage = MigrationStage.COPYING
    sequence.valid = 32
    assert _offered(transfer.transfer(migration)) == [32]
    sequence.valid = 48  # steps went on meanwhile
    assert _offered(transfer.transfer(migration)) == [48], "the target waits for it, and it is not computed again there"
    assert transfer.is_behind(migration), "nothing is filled in yet"


def _offered(effects: list[Effect]) -> list[int]:
    return [each.message.tokens for each in effects if isinstance(each, Send) and isinstance(each.message, Fill)]
