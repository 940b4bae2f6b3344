"""Loads a decoder from a checkpoint directory: weights and KV in one arena."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.loading.weights import (
    TORCH_DTYPES,
    Checkpoint,
    WeightRoom,
    Weights,
    checkpoint_digest,
    digest_of,
    fill_part,
    fill_pieces,
    root_digest,
    weight_granules,
)
from dunlin.engine.decoder.memory.arena import FILE_MEMORY
from dunlin.engine.decoder.memory.granule_ledger import NO_DIGEST
from dunlin.engine.decoder.memory.granule_memory import GranuleSource
from dunlin.engine.decoder.memory.layer_arena import LayerArena, ModelMemory, open_arena, open_arena_read_only
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES, ArenaPlan, granules_for
from dunlin.engine.decoder.numerics import Numerics
from dunlin.engine.ranks.collective import ONE_RANK, Collective
from dunlin.model.checkpoint_tensors import tensor_faults
from dunlin.model.config import ModelConfig, load_config
from dunlin.model.kv_dtypes import FP8
from dunlin.model.rank_part import RankPart, rank_part
from dunlin.model.weight_layout import layer_blocks

KV_TORCH_DTYPES = {**TORCH_DTYPES, FP8: torch.float8_e4m3fn}
"""Of KV, by the name that messages and options have."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder ready to compute. `weights_digest` names what KV depends on besides its tokens: the weights of all
    layers, held or not, and the configuration with its rope; `layer_digests` are those of each layer. Both are of the
    whole model, and so is `config`, whatever part of it a rank's decoder has. `layers` are held; `slots` is the least
    capacity over them when the model was loaded, `quantum` what one granule adds to a layer.
    """

    decoder: Decoder
    arena: LayerArena
    config: ModelConfig
    weights: Weights
    weights_digest: str
    layers: tuple[int, ...]
    slots: int
    quantum: int
    layer_digests: tuple[str, ...]


def load_model(
    directory: Path,
    dtype: str,
    kv_bytes: int,
    numerics: Numerics,
    arena_fd: int,
    safepoint: Callable[[], None] = lambda: None,
    layers: Sequence[int] | None = None,
    source: GranuleSource = FILE_MEMORY,
    collective: Collective = ONE_RANK,
    kv_dtype: str = "",
) -> LoadedModel:
    """Load the checkpoint in `directory` into memory of `source`; KV gets `kv_bytes` over all layers, rounded down to
    granules, and has numbers of `kv_dtype` (empty: of `dtype`, as the weights).

    With the same arguments everything lies where the last process with this memory file had it: the layers that it
    held, and their KV. In fresh memory the layers are `layers`, or all. Weights that lie there already are kept.
    Of several ranks each loads its part, and has its share of `kv_bytes`.

    :raises ModelError: the checkpoint cannot be served.
    :raises ValueError: `kv_bytes` is too little for one granule in every layer, or the model has no part for the rank.
    """
    part = rank_part(load_config(directory), collective.rank, collective.ranks)
    memory = part_memory(part, TORCH_DTYPES[dtype], kv_bytes, source.granule_bytes, KV_TORCH_DTYPES[kv_dtype or dtype])
    with closing(Checkpoint(directory, part.whole.quantization)) as checkpoint:
        for fault in tensor_faults(checkpoint.entries, part.whole, directory):
            raise fault
        held = layers if layers is not None else range(memory.config.layers)
        arena = open_arena(arena_fd, memory, held, source)
        weights = WeightLoader(arena, checkpoint, memory, part).load(safepoint)
        digests = whole_digests(arena, checkpoint, memory, part, safepoint)
    return _model(arena, memory, weights, numerics, digests, part.whole, collective)


def open_loaded_model(
    directory: Path, dtype: str, kv_bytes: int, numerics: Numerics, arena_fd: int, kv_dtype: str = ""
) -> LoadedModel | None:
    """The model that another process has loaded into this memory file, to compute with KV of one's own; None if none
    has. Its KV must not be touched. Nothing is written: that process may give the memory to KV at any time, and
    `LoadedModel.arena.is_current` says afterwards whether it did.

    :raises ModelError, ValueError: as `load_model`.
    """
    memory = model_memory(
        load_config(directory), TORCH_DTYPES[dtype], kv_bytes, kv_dtype=KV_TORCH_DTYPES[kv_dtype or dtype]
    )
    arena = open_arena_read_only(arena_fd, memory)
    if arena is None:
        return None
    record = arena.record
    if not record.outer_loaded or not all(record.layers[layer].loaded for layer in record.held):
        arena.close()
        return None
    digests = [state.digest for state in record.layers]
    return _model(arena, memory, loaded_weights(arena), numerics, digests, memory.config)


def open_rank_kv(
    directory: Path, dtype: str, kv_bytes: int, arena_fds: Sequence[int], kv_dtype: str = ""
) -> list[list[Tensor]]:
    """The KV of ranks 1, 2, … by layer, to copy it for them. They have loaded the model with the same arguments.

    :raises ModelError, MemoryError, OSError: as `load_model`.
    """
    config, found = load_config(directory), []
    for at, fd in enumerate(arena_fds, start=1):
        part = rank_part(config, at, len(arena_fds) + 1)
        kind, granule_bytes = KV_TORCH_DTYPES[kv_dtype or dtype], FILE_MEMORY.granule_bytes
        memory = part_memory(part, TORCH_DTYPES[dtype], kv_bytes, granule_bytes, kind)
        arena = open_arena(fd, memory, range(config.layers))
        found.append([arena.kv(layer) for layer in range(config.layers)])
    return found


def model_memory(
    config: ModelConfig,
    dtype: torch.dtype,
    kv_bytes: int,
    granule_bytes: int = GRANULE_BYTES,
    kv_dtype: torch.dtype | None = None,
) -> ModelMemory:
    """The sizes of the arena that has `kv_bytes` of KV while all layers are held. `kv_dtype` None: as the weights.

    :raises ValueError: that is less than one slot in every layer.
    """
    per_layer = kv_bytes // config.layers // granule_bytes
    kept = kv_dtype or dtype
    slot_bytes = config.slot_bytes(kept.itemsize)
    if not per_layer * granule_bytes // slot_bytes:
        least = config.layers * granules_for(slot_bytes, granule_bytes) * granule_bytes
        raise ValueError(
            f"{kv_bytes} bytes of KV are less than one slot in each of {config.layers} layers: give at least {least}"
        )
    outer, weights = weight_granules(config, dtype.itemsize, granule_bytes)
    granules = outer + sum(weights) + per_layer * config.layers
    plan = ArenaPlan(granules, outer, weights, slot_bytes, f"{dtype} {kept} {config!r}", granule_bytes)
    return ModelMemory(config, dtype, plan, kept)


def part_memory(
    part: RankPart, dtype: torch.dtype, kv_bytes: int, granule_bytes: int, kv_dtype: torch.dtype | None = None
) -> ModelMemory:
    """The sizes of a rank's arena, with its share of `kv_bytes`. :raises ValueError: as `model_memory`."""
    memory = model_memory(part.config, dtype, kv_bytes // part.ranks, granule_bytes, kv_dtype)
    if part.ranks == 1:
        return memory
    named = f"{memory.plan.model} rank {part.rank} of {part.ranks}"
    return replace(memory, plan=replace(memory.plan, model=named))


def whole_digests(
    arena: LayerArena, checkpoint: Checkpoint, memory: ModelMemory, part: RankPart, safepoint: Callable[[], None]
) -> list[bytes]:
    """The digests of all layers of the whole model: of what lies in the arena, or on disk where that is a part of it.

    Ranks but the first report no digests, and read nothing for them.
    """
    if part.ranks == 1 or part.rank:
        return [state.digest for state in arena.record.layers]
    found = []
    for layer in range(part.whole.layers):
        found.append(checkpoint_digest(checkpoint, layer_blocks(part.whole, layer), memory.dtype))
        safepoint()
    return found


def loaded_weights(arena: LayerArena) -> Weights:
    """Views of the weights that the ledger says are there."""
    record = arena.record
    layers = {layer: arena.layer_room(layer).views for layer in record.held}
    digest = root_digest(record.outer_digest, [state.digest for state in record.layers])
    return Weights(arena.outer_room().views, layers, digest)


class WeightLoader:
    """Brings the weights of the layers held into an arena, each verified and noted in the ledger."""

    def __init__(
        self, arena: LayerArena, checkpoint: Checkpoint, memory: ModelMemory, part: RankPart | None = None
    ) -> None:
        self._arena = arena
        self._checkpoint = checkpoint
        self._memory = memory
        self._part = part if part is not None and part.ranks > 1 else None

    def load(self, safepoint: Callable[[], None]) -> Weights:
        """Fill what is not there yet, or damaged; passes a `safepoint` after each layer: loading for long is no hang.

        :raises ModelError: a tensor is missing, or of a dtype that is not read.
        """
        self._forget_other_checkpoint()
        self._load_outer()
        for layer in range(self._memory.config.layers):
            safepoint()
            if self._arena.record.layers[layer].held:
                self._load_layer(layer)
            elif self._arena.record.layers[layer].digest == NO_DIGEST:
                self._note_layer(layer, digest=self._digest_on_disk(layer))
        return loaded_weights(self._arena)

    def _forget_other_checkpoint(self) -> None:
        record, identity = self._arena.record, self._checkpoint.identity
        if record.checkpoint != identity:
            layers = tuple(replace(state, loaded=False, digest=NO_DIGEST) for state in record.layers)
            self._arena.commit(replace(record, checkpoint=identity, layers=layers, outer_loaded=False))

    def _load_outer(self) -> None:
        record, room = self._arena.record, self._arena.outer_room()
        if not (record.outer_loaded and digest_of(room) == record.outer_digest):
            self._fill(room)
            self._arena.commit(replace(record, outer_loaded=True, outer_digest=digest_of(room)))

    def _load_layer(self, layer: int) -> None:
        state, room = self._arena.record.layers[layer], self._arena.layer_room(layer)
        if not (state.loaded and digest_of(room) == state.digest):
            self._fill(room)
            self._note_layer(layer, loaded=True, digest=digest_of(room))

    def _note_layer(self, layer: int, **changed: object) -> None:
        self._arena.commit(self._arena.record.with_layer(layer, **changed))

    def _fill(self, room: WeightRoom) -> None:
        part = self._part
        for _ in fill_pieces(self._checkpoint, room) if part is None else fill_part(self._checkpoint, room, part):
            pass

    def _digest_on_disk(self, layer: int) -> bytes:
        blocks = layer_blocks(self._memory.config, layer)
        return checkpoint_digest(self._checkpoint, blocks, self._memory.dtype)


def _model(
    arena: LayerArena,
    memory: ModelMemory,
    weights: Weights,
    numerics: Numerics,
    digests: Sequence[bytes],
    whole: ModelConfig,
    collective: Collective = ONE_RANK,
) -> LoadedModel:
    """`digests` are those of the layers of the `whole` model."""
    kv = [arena.kv(layer) for layer in range(whole.layers)]
    decoder = Decoder(memory.config, weights, kv, numerics, collective=collective)
    root = root_digest(arena.record.outer_digest, digests)
    digest = xxhash.xxh3_128_hexdigest(f"{root} {whole!r}".encode())
    named = tuple(each.hex() for each in digests)
    held, slots, quantum = arena.record.held, arena.slots, arena.plan.quantum
    return LoadedModel(decoder, arena, whole, weights, digest, held, slots, quantum, named)
