"""Which granules the layers held, coming and retained get: pure functions from one ledger record to the next.

Granules are assigned lowest first, one range after another, so ranges map in long runs. A range only ever grows or
shrinks at its tail: the slots that stay keep their content and their address.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from dunlin.engine.decoder.memory.granule_ledger import (
    OUTER,
    Granules,
    LayerState,
    LedgerPhase,
    LedgerRecord,
    RangeKey,
    RangeKind,
    kv_of,
    weights_of,
)

GRANULE_BYTES = 64 * 1024
"""Of a granule in a memory file; a device has its own."""


class LayoutError(ValueError):
    """A change of layers that cannot be made; the text says why."""


def granules_for(size_bytes: int, granule_bytes: int = GRANULE_BYTES) -> int:
    """How many granules hold `size_bytes`."""
    return -(-size_bytes // granule_bytes)


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """An arena's sizes: granules in all, for the outer weights and for each layer's weights; bytes of one token's KV in
    one layer. `model` names whose weights these are, and their dtype.
    """

    granules: int
    outer: int
    weights: tuple[int, ...]
    slot_bytes: int
    model: str = ""
    granule_bytes: int = GRANULE_BYTES

    @property
    def quantum(self) -> int:
        """Slots that one granule adds to a layer, at least 1."""
        return max(self.granule_bytes // self.slot_bytes, 1)

    @property
    def digest(self) -> bytes:
        """Equal for plans whose arenas can be exchanged."""
        return xxhash.xxh3_128_digest(repr(self).encode())

    def slots(self, granules: int) -> int:
        """Slots in the first `granules` of a layer's KV."""
        return granules * self.granule_bytes // self.slot_bytes


def slot_capacity(plan: ArenaPlan, record: LedgerRecord) -> int:
    """Slots that every layer held has."""
    return min(plan.slots(len(record.granules(kv_of(layer)))) for layer in record.held)


def slots_of(plan: ArenaPlan, record: LedgerRecord, layer: int) -> int:
    """Slots whose KV one layer has, held or retained: 0 if it is neither."""
    state = record.layers[layer]
    granules = len(record.granules(kv_of(layer))) if state.held else state.retained
    return plan.slots(granules)


def first_record(plan: ArenaPlan, held: Sequence[int]) -> LedgerRecord:
    """The layout of a fresh arena: nothing is loaded.

    :raises LayoutError: the weights leave no slot.
    """
    layers = tuple(LayerState(held=layer in held) for layer in range(len(plan.weights)))
    record = LedgerRecord(0, LedgerPhase.SETTLED, layers, {})
    return replace(record, ranges=_resized(plan, record, _wanted(plan, record, held)))


def without_weights(plan: ArenaPlan, record: LedgerRecord, keep: Sequence[int], layout: int) -> LedgerRecord:
    """Weights of the layers held that are not in `keep` become KV of those that are; the others' KV is retained."""
    states = tuple(_dropped(record, layer, layer in keep) for layer in range(len(record.layers)))
    dropped = replace(record, layout=layout, phase=LedgerPhase.DROPPED, layers=states)
    return replace(dropped, ranges=_resized(plan, dropped, _wanted(plan, dropped, keep)))


def without_kv(plan: ArenaPlan, record: LedgerRecord) -> LedgerRecord:
    """The retained KV becomes KV of the layers held."""
    states = tuple(replace(state, retained=0) for state in record.layers)
    released = replace(record, phase=LedgerPhase.SETTLED, layers=states)
    return replace(released, ranges=_resized(plan, released, _wanted(plan, released, released.held)))


def with_room(plan: ArenaPlan, record: LedgerRecord, target: Sequence[int]) -> LedgerRecord:
    """Tails of KV make room for the weights and the KV of the layers of `target` that are not held yet.

    :raises LayoutError: they leave no slot.
    """
    room = replace(record, phase=LedgerPhase.LOADING)
    wanted = _wanted(plan, room, target)
    for layer in target:
        kept = min(record.layers[layer].retained, wanted[kv_of(layer)])
        room = room.with_layer(layer, coming=True, retained=kept)
    return replace(room, ranges=_resized(plan, room, wanted))


def with_layers(record: LedgerRecord, layout: int) -> LedgerRecord:
    """The coming layers are held."""
    states = tuple(
        replace(state, held=True, coming=False, retained=0) if state.coming else state for state in record.layers
    )
    return replace(record, layout=layout, phase=LedgerPhase.SETTLED, layers=states)


def aborted(plan: ArenaPlan, record: LedgerRecord) -> LedgerRecord:
    """The change under way ends here: coming layers are forgotten, the layers held and the KV retained stay."""
    if record.phase is not LedgerPhase.LOADING:
        return replace(record, phase=LedgerPhase.SETTLED)
    states = tuple(replace(state, coming=False, loaded=state.loaded and state.held) for state in record.layers)
    back = replace(record, phase=LedgerPhase.SETTLED, layers=states)
    return replace(back, ranges=_resized(plan, back, _wanted(plan, back, back.held)))


def recovered(plan: ArenaPlan, record: LedgerRecord) -> LedgerRecord:
    """What the next engine makes of the record that its predecessor left: a load that was not committed is undone; KV
    that waited to be released still does.
    """
    return aborted(plan, record) if record.phase is LedgerPhase.LOADING else record


def file_runs(plan: ArenaPlan, record: LedgerRecord, key: RangeKey, start: int, length: int) -> list[tuple[int, int]]:
    """Where bytes `[start, start + length)` of a range lie: (byte offset from the first granule, length) runs."""
    granules, size = record.granules(key), plan.granule_bytes
    runs: list[tuple[int, int]] = []
    at, stop = start, start + length
    if not 0 <= start <= stop <= len(granules) * size:
        raise LayoutError(f"bytes {start} to {stop} lie outside {len(granules)} granules")
    while at < stop:
        index, inside = divmod(at, size)
        taken = min(size - inside, stop - at)
        offset = int(granules[index]) * size + inside
        if runs and sum(runs[-1]) == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + taken)
        else:
            runs.append((offset, taken))
        at += taken
    return runs


def _dropped(record: LedgerRecord, layer: int, kept: bool) -> LayerState:
    state = record.layers[layer]
    if kept:
        return state
    return replace(state, held=False, loaded=False, retained=len(record.granules(kv_of(layer))))


def _wanted(plan: ArenaPlan, record: LedgerRecord, layers: Sequence[int]) -> dict[RangeKey, int]:
    """Granules of each range when `layers` are held or coming: what the weights and the KV retained elsewhere leave is
    shared out evenly.

    :raises LayoutError: a layer would have no slot.
    """
    retained = {kv_of(layer): record.layers[layer].retained for layer in record.retained if layer not in layers}
    weights = {OUTER: plan.outer, **{weights_of(layer): plan.weights[layer] for layer in layers}}
    left = plan.granules - sum(weights.values()) - sum(retained.values())
    each = left // len(layers)
    if plan.slots(max(each, 0)) < 1:
        raise LayoutError(
            f"the weights of {len(layers)} layers take {sum(weights.values())} of {plan.granules} granules and leave "
            f"{max(left, 0)} for KV, less than one slot in each"
        )
    return {**weights, **retained, **{kv_of(layer): each for layer in layers}}


def _resized(plan: ArenaPlan, record: LedgerRecord, wanted: Mapping[RangeKey, int]) -> dict[RangeKey, Granules]:
    """The ranges cut or extended to `wanted`, each at its tail, from the granules that no range has then."""
    kept = {key: record.granules(key)[:count] for key, count in wanted.items()}
    free = np.ones(plan.granules, dtype=bool)
    for granules in kept.values():
        free[granules] = False
    spare, at = np.flatnonzero(free), 0
    made: dict[RangeKey, Granules] = {}
    for key in _in_order(wanted):
        missing = wanted[key] - len(kept[key])
        made[key] = np.concatenate([kept[key], spare[at : at + missing]])
        at += missing
    return made


def _in_order(keys: Iterable[RangeKey]) -> list[RangeKey]:
    """Weights before KV, each by layer."""
    return sorted(keys, key=lambda key: (key.kind is RangeKind.KV, key))
