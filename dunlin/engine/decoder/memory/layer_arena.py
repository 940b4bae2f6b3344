"""One decoder's arena: the ranges of its weights and KV, mapped as the granule ledger in the memory file says.

A change of layers maps what is to come beside what is (`extend_to`), commits the ledger's next record, and unmaps what
is no longer (`trim`). Decides nothing; `layer_layout` computes records and `LayerRemapper` orders them.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dunlin.engine.decoder.loading.weights import WeightRoom, weight_room
from dunlin.engine.decoder.memory.arena import FILE_MEMORY, FileHeader, ensure_size
from dunlin.engine.decoder.memory.granule_ledger import (
    OUTER,
    GranuleLedger,
    LedgerRecord,
    RangeKey,
    kv_of,
    ledger_bytes,
    weights_of,
)
from dunlin.engine.decoder.memory.granule_memory import GranuleArena, GranuleRange, GranuleSource
from dunlin.engine.decoder.memory.layer_layout import (
    GRANULE_BYTES,
    ArenaPlan,
    first_record,
    granules_for,
    recovered,
    slot_capacity,
    slots_of,
)
from dunlin.model.config import ModelConfig
from dunlin.model.weight_layout import layer_blocks, outer_blocks


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Whose memory it is, and how much of what."""

    config: ModelConfig
    dtype: torch.dtype
    plan: ArenaPlan
    kv_dtype: torch.dtype


class LayerArena:
    """Owns the mapping and the ledger of one memory file. Made by `open_arena`, or `open_arena_read_only`."""

    def __init__(
        self, arena: GranuleArena, header: FileHeader, ledger: GranuleLedger, model: "ModelMemory", record: LedgerRecord
    ) -> None:
        self.plan = plan = model.plan
        self.record = record
        self._model = model
        self._arena = arena
        self._header = header
        self._ledger = ledger
        self._ranges: dict[RangeKey, GranuleRange] = {OUTER: arena.reserve(plan.outer)}
        for layer, granules in enumerate(plan.weights):
            self._ranges[weights_of(layer)] = arena.reserve(granules)
            self._ranges[kv_of(layer)] = arena.reserve(plan.granules)

    @property
    def identity(self) -> int:
        """Names this use of the memory: as long as it is the same, KV lies in the slots where it lay."""
        return self._ledger.arena

    @property
    def fd(self) -> int:
        """The memory file."""
        return self._arena.fd

    @property
    def data_offset(self) -> int:
        """Where the first granule lies in the file, in bytes."""
        return self._arena.offset_of(0)

    @property
    def slots(self) -> int:
        """Slots that every layer held has."""
        return slot_capacity(self.plan, self.record)

    @property
    def free_granules(self) -> int:
        """Granules that serve nothing: fewer than there are layers held."""
        return self.plan.granules - sum(len(granules) for granules in self.record.ranges.values())

    def slots_of(self, layer: int) -> int:
        """Slots with KV of one layer, held or retained."""
        return slots_of(self.plan, self.record, layer)

    def kv(self, layer: int) -> Tensor:
        """One layer's KV, `[slot, 2, kv_heads, head_dim]`, as long as it could ever be: only the first `slots_of` may
        be touched. It stays at its address, whatever is mapped.
        """
        config = self._model.config
        flat = self._ranges[kv_of(layer)].tensor(self._model.kv_dtype)
        slot_items = config.slot_bytes(1)
        reserved = flat.numel() // slot_items
        return flat[: reserved * slot_items].view(reserved, 2, config.kv_heads, config.head_dim)

    def layer_room(self, layer: int) -> WeightRoom:
        """The memory of one layer's weights; only to be touched while the ledger has granules for it."""
        flat = self._ranges[weights_of(layer)].tensor(self._model.dtype)
        return weight_room(flat, layer_blocks(self._model.config, layer))

    def outer_room(self) -> WeightRoom:
        """The memory of the weights that belong to no layer."""
        return weight_room(self._ranges[OUTER].tensor(self._model.dtype), outer_blocks(self._model.config))

    def extend_to(self, record: LedgerRecord, *, populate: bool = True) -> Iterator[int]:
        """Map the granules that `record` adds to each range, at its end; yields after each piece. Nothing else changes:
        the granules go on serving what they serve until `commit`.

        :raises MemoryError: the system has no memory or no mappings left; `trim` takes back what was mapped.
        """
        for key, granules in record.ranges.items():
            mapped = self._ranges[key]
            if len(granules) > len(mapped):
                yield from mapped.extend(granules, populate=populate)

    def commit(self, record: LedgerRecord) -> None:
        """Put `record` in force: from here on the next engine maps it.

        :raises LedgerError: it contradicts itself.
        """
        self._ledger.commit(record)
        self.record = record

    def trim(self) -> Iterator[int]:
        """Unmap what the record in force does not have; yields after each piece."""
        for key, mapped in self._ranges.items():
            yield from mapped.truncate(len(self.record.granules(key)))

    def is_current(self) -> bool:
        """Whether the record that this arena was opened with is still in force: of use to one that only reads."""
        before = self._ledger.sequence, self._ledger.arena
        return self._ledger.read() is not None and (self._ledger.sequence, self._ledger.arena) == before

    def check_integrity(self) -> None:
        """What is mapped is what the ledger says.

        :raises AssertionError: it is not.
        """
        for key, mapped in self._ranges.items():
            if mapped.granules != self.record.granules(key).tolist():
                raise AssertionError(
                    f"{key}: mapped are {mapped.granules}, the ledger says {self.record.granules(key)}"
                )

    def close(self) -> None:
        """Unmap everything. Views of it must not be touched afterwards; the file stays open."""
        self._arena.close()
        self._header.close()


def open_arena(fd: int, model: ModelMemory, held: Sequence[int], source: GranuleSource = FILE_MEMORY) -> LayerArena:
    """Map the arena in `fd` as the last engine left it; a change of layers that it did not commit is undone. Memory
    that has no ledger for this model and plan, or whose granules ended with that engine, becomes a fresh arena that
    holds the layers `held`.

    :raises LayoutError: the weights leave no slot.
    :raises MemoryError, OSError: the system has no memory.
    """
    plan = model.plan
    header_bytes = _header_bytes(plan)
    ensure_size(fd, header_bytes + source.file_bytes(plan.granules))
    header = FileHeader(fd, header_bytes)
    ledger = GranuleLedger(header, len(plan.weights), plan.granules, plan.digest)
    record = ledger.read() if source.outlives_process else None
    if record is None:
        record = first_record(plan, held)
        ledger.initialise(record, secrets.randbits(63) | 1)
    elif (undone := recovered(plan, record)) is not record:
        ledger.commit(undone)
        record = undone
    return _mapped(LayerArena(source.open(fd, header_bytes, plan.granules), header, ledger, model, record))


def open_arena_read_only(fd: int, model: ModelMemory) -> LayerArena | None:
    """Map the arena in `fd` to look at it beside the engine that runs: nothing is written, and nothing can be.

    None: it has no ledger for this model and plan. What is mapped may serve something else at any time: see
    `is_current`.
    """
    plan = model.plan
    header_bytes = _header_bytes(plan)
    if os.fstat(fd).st_size < header_bytes + FILE_MEMORY.file_bytes(plan.granules):
        return None
    header = FileHeader(fd, header_bytes, read_only=True)
    ledger = GranuleLedger(header, len(plan.weights), plan.granules, plan.digest)
    record = ledger.read()
    if record is None:
        header.close()
        return None
    granules = FILE_MEMORY.open(fd, header_bytes, plan.granules, read_only=True)
    return _mapped(LayerArena(granules, header, ledger, model, record))


def _mapped(arena: LayerArena) -> LayerArena:
    for _ in arena.extend_to(arena.record, populate=False):
        pass
    arena.check_integrity()
    return arena


def _header_bytes(plan: ArenaPlan) -> int:
    return granules_for(ledger_bytes(len(plan.weights), plan.granules)) * GRANULE_BYTES
