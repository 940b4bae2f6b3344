"""Decode steps on the CPU: from a step's tokens to the next ones in one call of a kernel, in bf16.

A call computes beside this thread, after those that were begun before: a step may be launched while the one that
chooses its tokens is under way. A step that the kernel cannot compute goes layer by layer: other dtypes, adapters, keys
elsewhere, more rows, models with parts that the kernel lacks. Weights and KV stay where they lie; their addresses are
looked up as layers come and go.
"""

import ctypes
from array import array
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dunlin.engine.attention.base import LocalRows
from dunlin.engine.attention.native.library import KernelUnavailable, load_library
from dunlin.engine.attention.spans import Runs
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.host_copies import are_all, rows_at
from dunlin.engine.decoder.sampling.sampling import SampledToken
from dunlin.model.config import ModelConfig

SOURCE = Path(__file__).with_name("decode_step.cpp")
LIBRARY = SOURCE.with_suffix(".so")
MOST_ROWS = 64
"""Of a step; more are computed layer by layer."""
HEAD_DIMS = (32, 64, 96, 128)
COLUMNS = 4
"""That a product's number of columns is a multiple of."""
_BLOCKS = (
    "input_norm", "qkv", "qkv_bias", "query_norm", "key_norm", "out", "out_bias", "mlp_norm", "gate_up", "gate_up_bias",
    "down", "down_bias",
)  # fmt: skip
"""In the order of `Layer` in the source."""
_LAYER_FIELDS = len(_BLOCKS) + 3
_POINTERS = (
    "layers", "hidden", "frequencies", "factors", "places", "lengths", "run_counts", "run_at", "run_slot", "tokens",
    "embed", "norm", "head", "logits", "greatest",
)  # fmt: skip
_NUMBERS = (
    "layer_count", "rows", "width", "heads", "kv_heads", "dim", "inner", "turned", "turns", "vocabulary", "level",
    "threads",
)  # fmt: skip
ALL_BEGUN = NOT_BEGUN = 0
"""Tickets: to join by, and of a step that was not launched."""


class StepCall(ctypes.Structure):
    """`Step` in the source."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("epsilon", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


class DecodeKernel:
    """Computes decode steps of one decoder. `library` has the kernel, `level` is the processor's. `most_rows`: steps of
    more go layer by layer.
    """

    def __init__(self, decoder: Decoder, library: Any, level: int) -> None:
        config = decoder.config
        self._decoder = decoder
        self._library = library
        self._outer = _outer_weights(decoder)
        self._frequencies = torch.stack([frequencies for frequencies, _ in decoder.ropes])
        self._factors = torch.tensor([factor for _, factor in decoder.ropes], dtype=torch.float32)
        turns, pairs = self._frequencies.shape
        self._call = StepCall(
            frequencies=self._frequencies.data_ptr(), factors=self._factors.data_ptr(), width=config.hidden,
            heads=config.heads, kv_heads=config.kv_heads, dim=config.head_dim, inner=config.intermediate,
            turned=2 * pairs, turns=turns, vocabulary=config.vocab, level=level, epsilon=config.norm_eps,
            scale=decoder.attention_kind(0).scale_of(config.head_dim),
        )  # fmt: skip
        self.width = config.hidden
        self.most_rows = MOST_ROWS
        self._layers = (ctypes.c_int64 * (_LAYER_FIELDS * config.layers))()
        self._known: dict[int, object] = {}
        self._runs: list[Runs] = []
        self._run_columns: tuple[array[int], ...] = ()
        self._under_way: deque[DecodeStep] = deque()  # what they name in memory is kept until they are done

    def begin(self, batch: DecoderBatch, hidden: Tensor | None) -> "DecodeStep | None":
        """See `BeginSegments`. A step that is refused may be computed at once: no step is under way then."""
        step = self._make_step(batch, hidden)
        if step is None:
            self.join(ALL_BEGUN)
        return step

    def _make_step(self, batch: DecoderBatch, hidden: Tensor | None) -> "DecodeStep | None":
        rows, count = batch.rows, len(batch.rows)
        if not isinstance(rows, LocalRows) or batch.adapters is not None:
            return None
        if len(batch.slots) != count or not 0 < count <= self.most_rows:
            return None
        if hidden is None and self._outer is None:
            hidden = self._decoder.embed(batch.tokens)
        if hidden is not None and hidden.dtype is not torch.bfloat16:
            return None
        if rows.runs != self._runs:
            self._runs = list(rows.runs)
            self._run_columns = _columns(rows.runs)
        return DecodeStep(self, batch, hidden, array("q", rows.lengths), self._run_columns)

    def launch(self, step: "DecodeStep", layer: int, stop: int) -> int:
        """Begin to compute a step's layers, and where they are the model's last ones, logits and choices; returns the
        ticket to join by.

        :raises ValueError: a shape that the kernel does not take.
        """
        call = self._call
        for each in range(layer, stop):
            self._look_up(each)
        call.layers = ctypes.addressof(self._layers) + 8 * _LAYER_FIELDS * layer
        call.layer_count, call.rows, call.threads = stop - layer, len(step.lengths), torch.get_num_threads()
        call.hidden, call.places = step.states.data_ptr(), step.places.data_ptr()
        columns = (step.lengths, *step.runs)
        call.lengths, call.run_counts, call.run_at, call.run_slot = (each.buffer_info()[0] for each in columns)
        self._name_outer(step, is_first=step.ticket == NOT_BEGUN, is_last=stop == self._decoder.config.layers)
        ticket: int = self._library.dunlin_decode_begin(ctypes.byref(call))
        if not ticket:
            raise ValueError(f"the kernel of decode steps does not take {self._decoder.config}")
        while self._under_way and self.join(self._under_way[0].ticket, 0.0):
            self._under_way.popleft()
        self._under_way.append(step)
        return ticket

    def join(self, ticket: int, most_s: float = -1.0) -> bool:
        """Compute with the kernel's threads until that step is done, for `most_s` seconds at most if that is not
        negative; whether it is done.
        """
        return bool(self._library.dunlin_decode_join(ticket, most_s))

    def _name_outer(self, step: "DecodeStep", is_first: bool, is_last: bool) -> None:
        """What lies before a step's first layers, where it begins with its tokens, and after the model's last."""
        call = self._call
        call.tokens = step.tokens.data_ptr() if step.tokens is not None and is_first else None
        call.head = None
        if self._outer is None:
            return
        embed, norm, head = self._outer
        call.embed, call.norm = embed.data_ptr(), norm.data_ptr()
        if not is_last:
            return
        step.scores = torch.empty(len(step.lengths), len(head), dtype=torch.bfloat16)
        step.tokens_out = torch.empty(len(step.lengths), dtype=torch.int64)
        call.head, call.logits, call.greatest = (each.data_ptr() for each in (head, step.scores, step.tokens_out))

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
    """One step on its way through the layers. See `LayerSegments`.

    `states` are its hidden states, `tokens` the ones that it begins with if it was given none. Once launched to its
    end: its logits in `scores` `[rows, vocabulary]`, the tokens of the greatest in `tokens_out` `[rows]`, -1 where
    there is none. All of them are the kernel's until the step is done.
    """

    def __init__(
        self,
        kernel: DecodeKernel,
        batch: DecoderBatch,
        hidden: Tensor | None,
        lengths: "array[int]",
        runs: "tuple[array[int], ...]",
    ) -> None:
        self.tokens = batch.tokens if hidden is None else None
        shape = len(lengths), kernel.width
        self.states = torch.empty(shape, dtype=torch.bfloat16) if hidden is None else hidden.clone()
        self.places = batch.slots
        self.lengths = lengths
        self.runs = runs
        self.ticket = NOT_BEGUN
        self.scores: Tensor | None = None
        self.tokens_out: Tensor | None = None
        self._kernel = kernel

    @property
    def hidden(self) -> Tensor:
        """The hidden states after what was launched."""
        self.wait()
        return self.states

    def run(self, layer: int, stop: int) -> int:
        """All the layers at once."""
        self.ticket = self._kernel.launch(self, layer, stop)
        return stop

    def wait(self) -> None:
        """Compute until what was launched of it is done."""
        if self.ticket != NOT_BEGUN:
            self._kernel.join(self.ticket)

    def logits(self, places: Sequence[int]) -> Tensor | None:
        """See `LayerSegments`."""
        if self.scores is None:
            return None
        self.wait()
        return rows_at(self.scores, places).float()

    def greatest(self, places: Sequence[int]) -> "GreatestTokens | None":
        """See `LayerSegments`."""
        if self.tokens_out is None or not are_all(places, len(self.tokens_out)):
            return None
        return GreatestTokens(self, self.tokens_out)


class GreatestTokens:
    """See `Choices`: the tokens of a step that may be under way."""

    def __init__(self, step: DecodeStep, tokens: Tensor) -> None:
        self._step = step
        self._tokens = tokens

    def following(self, rows: Sequence[int]) -> Tensor | None:
        """Only as they are: nothing but the next step's call may read them yet."""
        return self._tokens if are_all(rows, len(self._tokens)) else None

    def read(self) -> list[SampledToken | None]:
        self._step.wait()
        return [SampledToken(token) if token >= 0 else None for token in self._tokens.tolist()]


def load_decode_kernel(decoder: Decoder, library: Path = LIBRARY, source: Path = SOURCE) -> DecodeKernel:
    """:raises KernelUnavailable: as `load_library`; or the processor lacks the instructions, or the kernel a part of
    the model.
    """
    if not is_supported(decoder.config) or decoder.kv[0].dtype is not torch.bfloat16:
        raise KernelUnavailable("the model has parts that the kernel of decode steps lacks")
    loaded = load_step_library(library, source)
    level = loaded.dunlin_level()
    if not level:
        raise KernelUnavailable("this processor has no AVX-512")
    return DecodeKernel(decoder, loaded, level)


def load_step_library(library: Path = LIBRARY, source: Path = SOURCE) -> Any:
    """The library, also for a thread that only waits for a step under way.

    :raises KernelUnavailable: as `load_library`.
    """
    loaded = load_library(library, source)
    if loaded.dunlin_level():
        loaded.dunlin_decode_begin.argtypes, loaded.dunlin_decode_begin.restype = [ctypes.c_void_p], ctypes.c_int64
        loaded.dunlin_decode_join.argtypes = [ctypes.c_int64, ctypes.c_double]
    return loaded


def _outer_weights(decoder: Decoder) -> tuple[Tensor, Tensor, Tensor] | None:
    """Embedding, last norm and head, where the kernel computes all that the model does with them."""
    config, weights = decoder.config, (decoder.outer["embed"], decoder.outer["norm"], decoder.head)
    is_plain = config.embed_scale == 1.0 and not config.logit_cap and config.vocab % COLUMNS == 0
    fits = all(each.dtype is torch.bfloat16 and each.is_contiguous() for each in weights)
    return weights if is_plain and fits else None


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
