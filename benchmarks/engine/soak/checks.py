"""What must hold when nothing is under way: slots, granules, rooms, tier and answers are all accounted for."""

from collections.abc import Iterable

from benchmarks.engine.soak.engine_orders import EngineOrders
from benchmarks.engine.soak.granules import ArenaView
from benchmarks.engine.soak.tier import SoakTier
from benchmarks.engine.soak.transfers import SoakTransfers
from dunlin.engine.decoder.memory.granule_ledger import LedgerError
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.peer_rooms import open_extents
from services.instance.kv.residency import SlotUse

OTHER_USES = (SlotUse.RESERVED, SlotUse.MOVING, SlotUse.QUARANTINED)


def check_engine(one: EngineOrders, arena: ArenaView, handles: Iterable[int]) -> list[str]:
    """Violations of one engine that rests. `handles`: the rooms that were open to its peer and are closed."""
    found = [] if not len(one.asked) and not one.on_transfer else [repr(one.asked)]
    slots, owned = one.book.slots, 0
    for each in one.book:
        owned += slots.held(each.number)
    if not slots.is_conserved or slots.count(SlotUse.OWNED) != owned or any(slots.count(use) for use in OTHER_USES):
        found.append(f"{slots!r}, where open sequences own {owned}")
    try:
        slots.check_integrity()
        found += arena.violations()
    except (AssertionError, ValueError, LedgerError) as error:
        found.append(f"{type(error).__name__}: {error}")
    found += [f"the room {handle} is open" for handle in handles if _is_open(one, handle)]
    return [f"{one.name}: {text}" for text in found]


def check_tier(tier: SoakTier, transfers: SoakTransfers) -> list[str]:
    """Violations of the host tier when no transfer is under way."""
    found = [] if tier.used == transfers.saved else [f"{tier.used} rooms of the tier hold {transfers.saved} regions"]
    return found + [f"room {room} of the tier was written while it was free" for room in tier.written_while_free()]


def _is_open(one: EngineOrders, handle: int) -> bool:
    try:
        open_extents(one.child.peer_page(), handle)
    except TransferError:
        return False
    return True
