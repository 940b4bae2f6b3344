"""Decode steps on the CPU: all layers that a step passes in one call of a kernel, in bf16.

A step that it cannot compute goes layer by layer: other dtypes, adapters, keys elsewhere, more rows, models with parts
that the kernel lacks. Weights and KV stay where they lie; their addresses are looked up as layers come and go.
"""

import ctypes
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dunlin.engine.attention.base import LocalRows
from dunlin.engine.attention.native.library import KernelUnavailable, load_library
from dunlin.engine.attention.spans import Runs
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.model.config import ModelConfig

SOURCE = Path(__file__).with_name("decode_step.cpp")
LIBRARY = SOURCE.with_suffix(".so")
STEP_ROWS = (0, 64, 16, 64)
"""By the processor's level: beyond, AMX multiplies faster than the kernel does."""
HEAD_DIMS = (32, 64, 96, 128)
COLUMNS = 4
"""That a product's number of columns is a multiple of."""
_BLOCKS = (
    "input_norm", "qkv", "qkv_bias", "query_norm", "key_norm", "out", "out_bias", "mlp_norm", "gate_up", "gate_up_bias",
    "down", "down_bias",
)  # fmt: skip
"""In the order of `Layer` in the source."""
_LAYER_FIELDS = len(_BLOCKS) + 3
_POINTERS = ("layers", "hidden", "turn", "places", "lengths", "run_counts", "run_at", "run_slot")
_NUMBERS = (
    "layer_count", "rows", "width", "heads", "kv_heads", "dim", "inner", "turned", "turns", "level", "threads",
)  # fmt: skip


class StepCall(ctypes.Structure):
    """`Step` in the source."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("epsilon", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


class DecodeKernel:
    """Computes the layers of decode steps of one decoder. `library` has the kernel, `level` is the processor's.
    `most_rows`: steps of more go layer by layer.
    """

    def __init__(self, decoder: Decoder, library: Any, level: int) -> None:
        config = decoder.config
        self._decoder = decoder
        self._function = library.dunlin_decode_step
        self._call = StepCall(
            width=config.hidden, heads=config.heads, kv_heads=config.kv_heads, dim=config.head_dim,
            inner=config.intermediate, level=level, epsilon=config.norm_eps,
            scale=decoder.attention_kind(0).scale_of(config.head_dim),
        )  # fmt: skip
        self.most_rows = STEP_ROWS[level]
        self._layers = (ctypes.c_int64 * (_LAYER_FIELDS * config.layers))()
        self._known: dict[int, object] = {}
        self._runs: list[Runs] = []
        self._run_columns: tuple[array[int], ...] = ()

    def begin(self, batch: DecoderBatch, hidden: Tensor, turn: Tensor) -> "DecodeStep | None":
        """See `BeginSegments`."""
        rows, count = batch.rows, len(batch.rows)
        if not isinstance(rows, LocalRows) or batch.adapters is not None:
            return None
        if len(batch.slots) != count or not 0 < count <= self.most_rows or hidden.dtype is not torch.bfloat16:
            return None
        if rows.runs != self._runs:
            self._runs = list(rows.runs)
            self._run_columns = _columns(rows.runs)
        lengths = array("q", rows.lengths)
        return DecodeStep(self, hidden.clone(), turn.contiguous(), batch.slots, lengths, self._run_columns)

    def compute(self, step: "DecodeStep", layer: int, stop: int) -> None:
        """Compute a step's layers in place.

        :raises ValueError: a shape that the kernel does not take.
        """
        call, half = self._call, step.turn.shape[-1]
        for each in range(layer, stop):
            self._look_up(each)
        call.layers = ctypes.addressof(self._layers) + 8 * _LAYER_FIELDS * layer
        call.layer_count, call.rows, call.threads = stop - layer, len(step.lengths), torch.get_num_threads()
        call.turned, call.turns = 2 * half, step.turn.numel() // (2 * half * len(step.lengths))
        call.hidden, call.turn, call.places = (each.data_ptr() for each in (step.hidden, step.turn, step.places))
        columns = (step.lengths, *step.runs)
        call.lengths, call.run_counts, call.run_at, call.run_slot = (each.buffer_info()[0] for each in columns)
        if self._function(ctypes.byref(call)):
            raise ValueError(f"the kernel of decode steps does not take {self._decoder.config}")

    def _look_up(self, layer: int) -> None:
        """Note the layer's addresses, if it was not held before, or came anew."""
        blocks = self._decoder.blocks(layer)
        if self._known.get(layer) is blocks:
            return
        pointers = [blocks[name].data_ptr() if name in blocks else 0 for name in _BLOCKS]
        kind, rotation = self._decoder.attention_kind(layer), self._decoder.rotation(layer)
        values = (*pointers, self._decoder.kv[layer].data_ptr(), kind.window, rotation)
        for at, value in enumerate(values, layer * _LAYER_FIELDS):
            self._layers[at] = value
        self._known[layer] = blocks


class DecodeStep:
    """One step on its way through the layers. See `LayerSegments`."""

    def __init__(
        self,
        kernel: DecodeKernel,
        hidden: Tensor,
        turn: Tensor,
        places: Tensor,
        lengths: "array[int]",
        runs: "tuple[array[int], ...]",
    ) -> None:
        self.hidden = hidden
        self.turn = turn
        self.places = places
        self.lengths = lengths
        self.runs = runs
        self._kernel = kernel

    def run(self, layer: int, stop: int) -> tuple[int, Tensor]:
        """All the layers at once."""
        self._kernel.compute(self, layer, stop)
        return stop, self.hidden


def load_decode_kernel(decoder: Decoder, library: Path = LIBRARY, source: Path = SOURCE) -> DecodeKernel:
    """:raises KernelUnavailable: as `load_library`; or the processor lacks the instructions, or the kernel a part of
    the model.
    """
    if not is_supported(decoder.config) or decoder.kv[0].dtype is not torch.bfloat16:
        raise KernelUnavailable("the model has parts that the kernel of decode steps lacks")
    loaded = load_library(library, source)
    level = loaded.dunlin_level()
    if not level:
        raise KernelUnavailable("this processor has no AVX-512")
    loaded.dunlin_decode_step.argtypes = [ctypes.c_void_p]
    return DecodeKernel(decoder, loaded, level)


def is_supported(config: ModelConfig) -> bool:
    """Whether the kernel computes all that the model's layers have."""
    plain = config.activation == "silu" and not config.norm_offset and not config.post_norms and config.experts is None
    columns = (config.hidden, config.intermediate)
    return (
        plain and not config.score_cap and config.head_dim in HEAD_DIMS and all(each % COLUMNS == 0 for each in columns)
    )


def _columns(runs: Sequence[Runs]) -> "tuple[array[int], ...]":
    """Numbers of runs, where they begin in the rows, and their first slots."""
    counts = array("q", [len(run_at) for run_at, _ in runs])
    run_at, run_slot = array("q"), array("q")
    for at, slot in runs:
        run_at.extend(at)
        run_slot.extend(slot)
    return counts, run_at, run_slot
