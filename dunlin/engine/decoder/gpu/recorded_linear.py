"""Steps that hold prompts as recorded linear work, with each layer's attention launched between.

What is between the attention of two layers, the end of the one and the queries of the next, is one launch, for each of
few numbers of tokens. Attention depends on rows and keys as well: recorded, it would take a recording for each of
hundreds of sizes, or tiles of nothing.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from dunlin.engine.attention.prompt_kernel import PromptKernel, plan_prompts
from dunlin.engine.attention.tile_sizes import SIZES
from dunlin.engine.attention.triton_paged import TritonAttention
from dunlin.engine.attention.triton_tiles import DeviceTable, TileLauncher, has_long_runs, launch
from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.gpu.recordings import Recordings
from dunlin.engine.decoder.gpu.step_buffers import StepBuffers, StepTables
from dunlin.engine.decoder.layer_segments import Record


class RecordedLinear:
    """Owns the recordings of one decoder."""

    def __init__(self, decoder: Decoder, record: Record) -> None:
        self.decoder = decoder
        self._recordings = Recordings(record)

    def __len__(self) -> int:
        return len(self._recordings)

    def run(self, buffers: StepBuffers, finished: int | None, projected: int | None) -> None:
        """Launch the rest of layer `finished` after its attention, and the queries, keys and values of `projected`."""
        self._recordings.run(
            (buffers.tokens, finished, projected), (buffers.tokens, finished is None, projected is None),
            buffers.hidden, lambda: self._compute(buffers, finished, projected),
        )  # fmt: skip

    def warm_up(self, buffers: StepBuffers, beat: Callable[[], object]) -> None:
        """Record what passes all layers that are held."""
        for layers in self.decoder.held_runs:
            for before, after in zip([None, *layers], [*layers, None], strict=True):
                self.run(buffers, before, after)
                beat()

    def _compute(self, buffers: StepBuffers, finished: int | None, projected: int | None) -> None:
        decoder, scratch, tokens = self.decoder, buffers.scratch, buffers.tokens
        if finished is not None:
            hidden = decoder.finish(finished, buffers.hidden, scratch.mixed[:tokens])
            if hidden is not buffers.hidden:
                buffers.hidden.copy_(hidden)
        if projected is not None:
            query = decoder.project(projected, buffers.hidden, buffers.turn, buffers.places)
            scratch.query[:tokens].copy_(query)


class MixedSegments:
    """One step on its way through the layers, each of which is a segment. See `LayerSegments`."""

    def __init__(
        self, linear: RecordedLinear, buffers: StepBuffers, tables: StepTables, tokens: int, runs: tuple[Tensor, Tensor]
    ) -> None:
        """`tokens`: those that are the step's. `runs`: of its rows' slots, on the device."""
        self.hidden = buffers.hidden[:tokens]
        self._linear = linear
        self._buffers = buffers
        scratch, narrow, wide = buffers.scratch, buffers.narrow[: len(tables.narrow)], buffers.wide[: len(tables.wide)]
        long_runs = runs if has_long_runs(tables.whole, tables.wide) else None
        kernel = _prompt_kernel(linear.decoder)
        self._tables = {
            kind: DeviceTable(
                table, buffers.slot_at, scratch.slots, narrow, wide, tables.splits, long_runs,
                plan_prompts(kernel, kind, tables.by_kind[kind], tables.wide, tables.slot_at, scratch.slots),
            )
            for kind, table in buffers.tables.items()
        }  # fmt: skip
        self._query, self._mixed, self._lse = scratch.query[:tokens], scratch.mixed[:tokens], scratch.lse[:tokens]
        self._projected: int | None = None

    def run(self, layer: int, stop: int) -> int:
        """See `LayerSegments`."""
        decoder, after = self._linear.decoder, layer + 1
        if self._projected != layer:
            self._linear.run(self._buffers, None, layer)
        kind = decoder.attention_kind(layer)
        launch(TileLauncher(kind, SIZES), self._tables[kind], self._query, decoder.kv[layer], self._mixed, self._lse)
        self._projected = after if after < stop else None
        self._linear.run(self._buffers, layer, self._projected)
        return after

    def logits(self, places: Sequence[int]) -> Tensor | None:
        """Not computed."""

    def greatest(self, places: Sequence[int]) -> None:
        """Not chosen."""


def _prompt_kernel(decoder: Decoder) -> PromptKernel | None:
    attention = decoder.numerics.attention
    return attention.prompts if isinstance(attention, TritonAttention) else None
