"""The cost model of one model shape on one device under tensor parallelism, composed of the device's operations.

A layer is four matrix products, one attention, two all-reduces and what only moves bytes; a step is all layers and the
output head over one position per row. No operation takes less than the device's peaks allow, and beyond what was
measured the work decides: `Surface.at` goes on in proportion, decode attention at its last measured bandwidth. Knows
shapes and devices; the result is pure (`models`).
"""

from collections.abc import Callable

from dunlin.cost.device import Device, DeviceError
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.group_steps import ExchangeBytes
from dunlin.cost.links import EngineLinks, TransferModel, TransferModels
from dunlin.cost.models import ComposedModel, CountSheet, PiecewiseCurve
from dunlin.cost.shapes import ModelShape, ShapeError
from dunlin.cost.surface import Surface
from dunlin.messages.types import TransferKind

USABLE = 0.9
"""The part of a device's memory that weights, activations and KV may fill; the rest is for the runtime."""
STEP_TOKENS, STEP_ROWS = 8192, 256
"""The largest step whose activations have room: vLLM's defaults for batched tokens on such devices, and sequences."""
_COPY_PASSES = 3
"""How often a byte for the host passes the device's memory: gathered from slots into a block, and read by the copy."""
_HEAD_DIM = 128
"""Head size of the measured attention kernels; others are priced by their bytes and products."""
_SPLIT_GROUP = 2.0
"""Query heads per kv head of the decode kernel that splits KV on every device."""
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
        self._group = self._heads / self._kv_heads

    def linear_s(self, tokens: float) -> float:
        """The four matrix products of one layer."""
        shape = self._shape
        queries = self._heads * shape.head_dim
        ffn = shape.ffn / self._tp
        return (
            self._product_s(tokens, queries + 2 * self._kv_heads * shape.head_dim, shape.hidden)
            + self._product_s(tokens, shape.hidden, queries)
            + self._product_s(tokens, 2 * ffn, shape.hidden)
            + self._product_s(tokens, shape.hidden, ffn)
        )

    def _product_s(self, tokens: float, width: float, depth: float) -> float:
        weights = width * depth
        least_s = max(
            2 * tokens * weights / self._device.flops, weights * self._shape.dtype_bytes / self._device.bytes_per_s
        )
        return max(least_s, self._device.gemm.at(tokens, width, depth))

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
        """No kernel is over sooner than the shortest."""
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
        the prefill of one sequence whose queries attend to as many. However few they are, the keys are read once: of
        several rows those of one, for counts do not say how many there are.
        """
        shape, surface = self._shape, self._device.prefill
        if 2 * keys <= queries:
            seconds = self._attention(surface, queries, keys, self._group)
        else:
            whole = self._attention(surface, 2 * keys, keys, self._group)
            alone = self._attention(surface, queries, queries / 2, self._group)
            seconds = max(alone, whole * queries / (2 * keys))
        row_bytes = 2 * self._kv_heads * shape.head_dim * shape.dtype_bytes
        read_s = keys * row_bytes / self._device.kv_bytes_per_s
        return max(seconds, read_s, 4 * queries * keys * self._heads * shape.head_dim / self._device.attention_flops)

    def decode_attention_s(self, rows: float, keys: float) -> float:
        """One layer's attention of `rows` single queries, each over `keys` on average.

        An engine splits a long row's KV over the multiprocessors. The kernel for two query heads per kv head was
        measured to do so at every length on every device; that for one does not on the A100. Fewer query heads on the
        same KV take no longer than two, and more no less: it is the same bytes.
        """
        seconds, pair_s = self.decode_kernel_s(rows, keys), self.decode_kernel_s(rows, keys, _SPLIT_GROUP)
        return max(seconds, pair_s) if self._group >= _SPLIT_GROUP else min(seconds, pair_s)

    def decode_kernel_s(self, rows: float, keys: float, group: float | None = None) -> float:
        """As `decode_attention_s`, by the kernel that was measured with `group` query heads per kv head (the shape's).

        Beyond the longest measured context a key costs what it did between the last two knots. Nowhere is KV read
        faster than the best bandwidth that was measured.
        """
        shape, surface = self._shape, self._device.decode
        group = group or self._group
        before, last = (2.0**knot for knot in surface.knots[1][-2:])
        seconds = self._attention(surface, rows, min(keys, last), group)
        row_bytes = 2 * self._kv_heads * shape.head_dim * shape.dtype_bytes
        if keys > last:
            key_s = (seconds - self._attention(surface, rows, before, group)) / (last - before)
            seconds += (keys - last) * max(key_s, rows * row_bytes / self._device.kv_bytes_per_s)
        least_s = 4 * rows * keys * self._heads * shape.head_dim / self._device.flops
        return max(seconds, least_s, rows * keys * row_bytes / self._device.kv_bytes_per_s)

    def _attention(self, surface: Surface, queries: float, keys: float, group: float) -> float:
        shape = self._shape
        most = surface.last_knot("kv_heads")
        kv_heads = self._kv_heads * shape.head_dim / _HEAD_DIM
        # More kv heads than measured are as many more rows: heads know nothing of each other.
        queries *= max(1.0, kv_heads / most)
        return surface.at(queries, keys, group, min(kv_heads, most))

    def head_s(self, rows: float) -> float:
        """The output head over `rows` positions, and drawing from what it gives."""
        shape = self._shape
        logits = shape.vocabulary / self._tp
        return self._product_s(rows, logits, shape.hidden) + self._device.streams["add"].at(
            # float32 logits are written, read for the normalisation and read for the draw
            rows * logits * 4 * 3
        )

    def step_model(self, layers: range | None = None) -> ComposedModel:
        """A step of all layers and the head, or of a range of layers (a pipeline's stage), tabulated for speed.

        The head belongs to the last layer, and what a step takes in any case to each range. Raises ShapeError on a
        range that is empty or outside the model.
        """
        every = range(self._shape.layers)
        part = every if layers is None else layers
        if not part or part.step != 1 or part[0] not in every or part[-1] not in every:
            raise ShapeError(f"{self._shape.name} has layers {every.start} to {every.stop - 1}, not {layers}")
        count = len(part)
        tokens = [count * (self.linear_s(x) + self.streaming_s(x) + self.all_reduce_s(x)) for x in _TOKENS]
        has_head = part.stop == every.stop
        heads = [self.head_s(x) if has_head else 0.0 for x in _TOKENS if x <= 4096]
        return ComposedModel(
            tokens=PiecewiseCurve(_TOKENS, monotone_curve(tokens)),
            rows=PiecewiseCurve(_TOKENS[: len(heads)], monotone_curve(heads)),
            prefill=_sheet(count, self.prefill_attention_s),
            decode=_sheet(count, self.decode_attention_s),
            fixed_s=self._device.step_fixed_s,
        )

    def timing(self) -> EngineTiming:
        """All timings that a simulated engine needs. Raises ShapeError where the weights leave no room for KV."""
        device, shape, tp = self._device, self._shape, self._tp
        weights = shape.weights_bytes()
        kv_bytes = shape.kv_bytes_per_token(tp)
        room = tp * (device.memory_bytes * USABLE - self.activation_bytes(STEP_TOKENS, STEP_ROWS)) - weights
        slots = int(room // kv_bytes)
        if slots < 1:
            raise ShapeError(
                f"{shape.name} needs {weights / 1e9:.0f} GB for its weights alone; {tp} x {device.name} offer "
                f"{tp * device.memory_bytes * USABLE / 1e9:.0f} GB: split it over more GPUs"
            )
        load_s = device.load.transfer_s(weights / tp)
        return EngineTiming(
            self.step_model(),
            self._moves(),
            load_s,
            slots,
            kv_bytes,
            layers=shape.layers,
            links=self._links(),
            node=device.node,
            exchange=self.exchange_bytes(),
        )

    def exchange_bytes(self) -> ExchangeBytes:
        """What steps of a group exchange of one token in one layer, over all GPUs of the instance."""
        shape, tp = self._shape, self._tp
        query = shape.heads * shape.head_dim * shape.dtype_bytes
        result = shape.heads * (shape.head_dim + 1) * 4
        return ExchangeBytes(query, result, shape.kv_bytes_per_token(tp) / shape.layers)

    def activation_bytes(self, tokens: int, rows: int) -> int:
        """The most that one GPU needs at once for a step's activations: the residual, its norm, and what is wider of
        attention (queries, keys, values, result) and feed-forward (gate, up, product); or float32 logits, twice.
        """
        shape = self._shape
        attention = (2 * self._heads + 2 * self._kv_heads) * shape.head_dim
        layer = tokens * shape.dtype_bytes * (2 * shape.hidden + max(attention, 3 * shape.ffn / self._tp))
        return int(max(layer, rows * shape.vocabulary / self._tp * 4 * 2))

    def _links(self) -> EngineLinks:
        """Each GPU has its own links, and copies take of its memory's time what their bytes need of it."""
        device, tp = self._device, self._tp
        memory = tp * device.bytes_per_s
        return EngineLinks(
            pcie=tp * device.host_link.bytes_per_s,
            nvlink=tp * device.nvlink.bytes_per_s,
            nic=tp * device.peer_link.bytes_per_s,
            nvlink_s=device.nvlink.fixed_s,
            nic_s=device.peer_link.fixed_s,
            look=memory,
            switch=device.host_link.bytes_per_s,
            gpus=tp,
            gpus_per_switch=device.gpus_per_switch,
            host_busy_share=min(1.0, _COPY_PASSES * device.host_link.bytes_per_s / device.bytes_per_s),
            send_byte_s=1.0 / memory,
            receive_byte_s=1.0 / memory,
            is_duplex=True,
        )

    def _moves(self) -> TransferModels:
        """Each GPU has its own links, and moves its share."""
        host, peer = self._device.host_link, self._device.peer_link
        to_host = TransferModel(host.fixed_s, self._tp * host.bytes_per_s)
        to_peer = TransferModel(peer.fixed_s, self._tp * peer.bytes_per_s)
        return TransferModels(to_peer, {TransferKind.SLAB_TO_HOST: to_host, TransferKind.HOST_TO_SLAB: to_host})


def _sheet(layers: int, attention_s: Callable[[float, float], float]) -> CountSheet:
    rows = [[layers * attention_s(2.0**i, 2.0**j) for j in range(_KEYS)] for i in range(_QUERIES)]
    return CountSheet(monotone_sheet(rows))


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
