"""The cost model of one model shape on one device under tensor parallelism, composed of the device's operations.

A layer is four matrix products, one attention, two all-reduces and what only moves bytes; a step is all layers and the
output head over one position per row. Knows shapes and devices; the result is pure (`models`).
"""

from collections.abc import Callable

from dunlin.cost.device import Device, DeviceError
from dunlin.cost.models import ComposedModel, CountSheet, EngineTiming, PiecewiseCurve, TransferModel, TransferModels
from dunlin.cost.shapes import ModelShape, ShapeError
from dunlin.cost.surface import Surface
from dunlin.messages.types import TransferKind

USABLE = 0.9
"""The part of a device's memory that weights and KV may fill; the rest is for activations and the runtime."""
_HEAD_DIM = 128
"""Head size of the measured attention kernels; others are priced by their bytes and products."""
_TOKENS = tuple(sorted({1.0, *(float(2**e * part // 8) for e in range(17) for part in range(8, 16))}))
_QUERIES, _KEYS = 21, 21


class StepComposer:
    """One shape on one device, split over `tp` GPUs. Raises DeviceError or ShapeError where that cannot be."""

    def __init__(self, device: Device, shape: ModelShape, tp: int = 1) -> None:
        shape.check_tp(tp)
        if tp > 1 and tp not in device.all_reduce:
            known = ", ".join(str(gpus) for gpus in sorted(device.all_reduce))
            raise DeviceError(f"{device.name} has no all-reduce over {tp} GPUs; known: {known}")
        self._device, self._shape, self._tp = device, shape, tp
        self._heads = shape.heads / tp
        self._kv_heads = max(1.0, shape.kv_heads / tp)

    def linear_s(self, tokens: float) -> float:
        """The four matrix products of one layer."""
        shape, gemm = self._shape, self._device.gemm
        queries = self._heads * shape.head_dim
        ffn = shape.ffn / self._tp
        return (
            gemm.at(tokens, queries + 2 * self._kv_heads * shape.head_dim, shape.hidden)
            + gemm.at(tokens, shape.hidden, queries)
            + gemm.at(tokens, 2 * ffn, shape.hidden)
            + gemm.at(tokens, shape.hidden, ffn)
        )

    def streaming_s(self, tokens: float) -> float:
        """Operations of one layer that only move bytes: norms, positions, KV to the slab, activation and two sums."""
        shape, add = self._shape, self._device.streams["add"]
        hidden = shape.hidden * shape.dtype_bytes
        heads = (self._heads + self._kv_heads) * shape.head_dim * shape.dtype_bytes
        kv = self._kv_heads * shape.head_dim * shape.dtype_bytes
        return (
            2 * self._row_wise_s("norm", tokens, hidden)
            + self._row_wise_s("rope", tokens, heads)
            + add.at(4 * tokens * kv)
            + self._row_wise_s("activation", tokens, shape.ffn / self._tp * shape.dtype_bytes)
            + 2 * add.at(3 * tokens * hidden)
        )

    def _row_wise_s(self, name: str, tokens: float, row_bytes: float) -> float:
        """Rows narrower than any measured go on as the surface does, but no kernel is over sooner than the shortest."""
        streams = self._device.streams
        return max(streams[name].at(tokens, row_bytes), streams["add"].at(3 * row_bytes))

    def all_reduce_s(self, tokens: float) -> float:
        """Both all-reduces of one layer."""
        if self._tp == 1:
            return 0.0
        return 2 * self._device.all_reduce[self._tp].at(tokens * self._shape.hidden * self._shape.dtype_bytes)

    def prefill_attention_s(self, queries: float, keys: float) -> float:
        """One layer's causal attention, a query attending to `keys` on average.

        More keys than half the queries means a chunk after a prefix, which no table has: it is priced as its share of
        the prefill of one sequence whose queries attend to as many.
        """
        surface = self._device.prefill
        if 2 * keys <= queries:
            return self._attention(surface, queries, keys)
        whole = self._attention(surface, 2 * keys, keys)
        return max(self._attention(surface, queries, queries / 2), whole * queries / (2 * keys))

    def decode_attention_s(self, rows: float, keys: float) -> float:
        """One layer's attention of `rows` single queries, each over `keys` on average."""
        return self._attention(self._device.decode, rows, keys)

    def _attention(self, surface: Surface, queries: float, keys: float) -> float:
        shape = self._shape
        # Below the shortest measured length a kernel takes no less: its time there is start-up.
        keys = max(keys, 2.0 ** surface.knots[1][0])
        most = 2.0 ** surface.knots[3][-1]
        kv_heads = self._kv_heads * shape.head_dim / _HEAD_DIM
        # More kv heads than measured are as many more rows: heads know nothing of each other.
        queries *= max(1.0, kv_heads / most)
        group = self._heads / self._kv_heads
        return surface.at(max(queries, 2.0 ** surface.knots[0][0]), keys, group, min(kv_heads, most))

    def head_s(self, rows: float) -> float:
        """The output head over `rows` positions, and drawing from what it gives."""
        shape = self._shape
        logits = shape.vocabulary / self._tp
        return self._device.gemm.at(rows, logits, shape.hidden) + self._device.streams["add"].at(
            # float32 logits are written, read for the normalisation and read for the draw
            rows * logits * 4 * 3
        )

    def step_model(self) -> ComposedModel:
        """The whole step, tabulated for speed."""
        layers = self._shape.layers
        tokens = [layers * (self.linear_s(x) + self.streaming_s(x) + self.all_reduce_s(x)) for x in _TOKENS]
        heads = [self.head_s(x) for x in _TOKENS if x <= 4096]
        return ComposedModel(
            tokens=PiecewiseCurve(_TOKENS, monotone_curve(tokens)),
            rows=PiecewiseCurve(_TOKENS[: len(heads)], monotone_curve(heads)),
            prefill=self._sheet(self.prefill_attention_s),
            decode=self._sheet(self.decode_attention_s),
            fixed_s=self._device.step_fixed_s,
        )

    def _sheet(self, attention_s: Callable[[float, float], float]) -> CountSheet:
        layers = self._shape.layers
        rows = [[layers * attention_s(2.0**i, 2.0**j) for j in range(_KEYS)] for i in range(_QUERIES)]
        return CountSheet(monotone_sheet(rows))

    def timing(self) -> EngineTiming:
        """All timings that a simulated engine needs. Raises ShapeError where the weights leave no room for KV."""
        device, shape, tp = self._device, self._shape, self._tp
        weights = shape.weights_bytes()
        kv_bytes = shape.kv_bytes_per_token(tp)
        slots = int((tp * device.memory_bytes * USABLE - weights) // kv_bytes)
        if slots < 1:
            raise ShapeError(
                f"{shape.name} needs {weights / 1e9:.0f} GB for its weights alone; {tp} x {device.name} offer "
                f"{tp * device.memory_bytes * USABLE / 1e9:.0f} GB: split it over more GPUs"
            )
        load_s = device.load.transfer_s(weights / tp)
        return EngineTiming(self.step_model(), self._moves(), load_s, slots, kv_bytes, layers=shape.layers)

    def _moves(self) -> TransferModels:
        """Each GPU has its own links, and moves its share."""
        host, peer = self._device.host_link, self._device.peer_link
        to_host = TransferModel(host.fixed_s, self._tp * host.bytes_per_s)
        to_peer = TransferModel(peer.fixed_s, self._tp * peer.bytes_per_s)
        return TransferModels(to_peer, {TransferKind.SLAB_TO_HOST: to_host, TransferKind.HOST_TO_SLAB: to_host})


def monotone_curve(values: list[float]) -> tuple[float, ...]:
    """The nearest sequence that never falls: halfway between the least one above and the greatest one below."""
    above, below = list(values), list(values)
    for i in range(1, len(values)):
        above[i] = max(above[i], above[i - 1])
    for i in range(len(values) - 2, -1, -1):
        below[i] = min(below[i], below[i + 1])
    return tuple(0.5 * (a + b) for a, b in zip(above, below, strict=True))


def monotone_sheet(rows: list[list[float]]) -> tuple[tuple[float, ...], ...]:
    """As `monotone_curve`, along rows and columns both."""
    above = [list(row) for row in rows]
    below = [list(row) for row in rows]
    last = len(rows) - 1
    for i, row in enumerate(above):
        for j in range(len(row)):
            row[j] = max(row[j], above[i - 1][j] if i else 0.0, row[j - 1] if j else 0.0)
    for i in range(last, -1, -1):
        row = below[i]
        for j in range(len(row) - 1, -1, -1):
            row[j] = min(row[j], below[i + 1][j] if i < last else row[j], row[j + 1] if j + 1 < len(row) else row[j])
    return tuple(tuple(0.5 * (a + b) for a, b in zip(*pair, strict=True)) for pair in zip(above, below, strict=True))
