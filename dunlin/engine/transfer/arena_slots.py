"""The slots of an arena as transfers see them: how many each layer has, and where they lie in the memory file."""

from collections.abc import Sequence

from torch import Tensor

from dunlin.engine.decoder.memory.granule_ledger import kv_of, weights_of
from dunlin.engine.decoder.memory.layer_arena import LayerArena
from dunlin.engine.decoder.memory.layer_layout import file_runs
from dunlin.engine.transfer.peer_access import FileRuns
from dunlin.engine.transfer.slab import HOST_KV, KvAccess, KvSlab


def slab_of(arena: LayerArena, kv: Sequence[Tensor], access: KvAccess = HOST_KV) -> KvSlab:
    """The slab of the arena's layout in force; `kv` has the views of all layers, which `access` reaches."""
    return KvSlab(kv, slots_by_layer(arena), arena.record.layout, access)


def slots_by_layer(arena: LayerArena) -> list[int]:
    """Slots with KV of every layer, held or retained: after a change of layers, what `KvSlab.change_layout` takes."""
    return [arena.slots_of(layer) for layer in range(len(arena.record.layers))]


def kv_file_runs(arena: LayerArena) -> dict[int, FileRuns]:
    """Where the slots of each layer that has any lie in the memory file."""
    slot_bytes, record = arena.plan.slot_bytes, arena.record
    found: dict[int, FileRuns] = {}
    for layer, slots in enumerate(slots_by_layer(arena)):
        runs = file_runs(arena.plan, record, kv_of(layer), 0, slots * slot_bytes)
        found[layer] = [(arena.data_offset + offset, length) for offset, length in runs]
    return found


def weight_file_runs(arena: LayerArena) -> dict[int, FileRuns]:
    """Where the weights of each layer held lie in the memory file."""
    found: dict[int, FileRuns] = {}
    for layer in arena.record.held:
        size = len(arena.layer_room(layer).content)
        runs = file_runs(arena.plan, arena.record, weights_of(layer), 0, size)
        found[layer] = [(arena.data_offset + offset, length) for offset, length in runs]
    return found
