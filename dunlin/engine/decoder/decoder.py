"""The decoder: one definition, configured. Llama's shape, with the variations that `ModelConfig` names.

The parts of a layer over packed tokens, on weights and KV that it does not own; `iteration` puts them in order. Knows
no sequence, no sampling and no message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.base import BatchRow
from dunlin.engine.decoder.linear_work import ComputeColumns, LinearWork, Product
from dunlin.engine.decoder.numerics import Numerics, linear_into
from dunlin.engine.decoder.rope import apply_rotary, inverse_frequencies, rotary_angles
from dunlin.engine.decoder.weights import Weights
from dunlin.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class DecoderBatch:
    """A step's tokens, packed without padding. Sampled rows get logits for their last token."""

    tokens: Tensor
    """`[tokens]` int64 ids."""
    positions: Tensor
    """`[tokens]` int64."""
    slots: Tensor
    """`[tokens]` int64: where each token's KV goes."""
    rows: Sequence[BatchRow]
    sampled: Tensor
    """`[samples]` int64 packed indices."""


class Decoder:
    """The parts of the forward pass over its weights and KV. Run it in `torch.inference_mode`.

    `kv` has every layer, by number; of those whose weights are not held nothing may be touched.
    """

    def __init__(self, config: ModelConfig, weights: Weights, kv: Sequence[Tensor], numerics: Numerics) -> None:
        self.config = config
        self.kv = kv
        self.numerics = numerics
        self._weights = weights
        self._frequencies = inverse_frequencies(config.rope, config.head_dim)

    def with_kv(self, kv: Sequence[Tensor]) -> "Decoder":
        """The same decoder over other KV."""
        return Decoder(self.config, self._weights, kv, self.numerics)

    @property
    def held_runs(self) -> list[range]:
        """The layers whose weights are held, in runs of consecutive ones."""
        runs: list[range] = []
        for layer in sorted(self._weights.layers):
            follows = bool(runs) and runs[-1].stop == layer
            start = runs.pop().start if follows else layer
            runs.append(range(start, layer + 1))
        return runs

    def embed(self, tokens: Tensor) -> Tensor:
        """The hidden states `[tokens, hidden]` before the first layer."""
        return F.embedding(tokens, self._weights.outer["embed"])

    def angles(self, positions: Tensor) -> Tensor:
        """What `project` turns by, for `positions` `[tokens]`; the same in every layer."""
        return self.numerics.rows(lambda part: rotary_angles(self._frequencies, part), positions)

    def project(self, layer: int, hidden: Tensor, turn: Tensor, slots: Tensor) -> Tensor:
        """Write the tokens' keys and values into `slots`; returns their queries `[tokens, heads, head_dim]`."""
        projected = self.numerics.rows(partial(self._project, self._weights.layers[layer]), hidden, turn)
        return self._write(layer, projected, slots)

    def finish(self, layer: int, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The rest of a layer after attention, whose result is `mixed` `[tokens, heads, head_dim]`."""
        return self.numerics.rows(partial(self._finish, self._weights.layers[layer]), hidden, mixed)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[samples, vocab]` fp32 from hidden states `[samples, hidden]` after the last layer."""
        return self.numerics.rows(self._logits, hidden) if len(hidden) else torch.empty(0, self.config.vocab)

    def begin_project(self, layer: int, start: int, stop: int, hidden: Tensor) -> LinearWork:
        """The product before attention for tokens `[start, stop)`; the result is for `put_projected`."""
        weights = self._weights.layers[layer]
        fused = Product(weights["qkv"], self._multiply(weights["qkv"], weights.get("qkv_bias")), _kept)
        return LinearWork([fused], start, stop, hidden, self._norm(hidden, weights["input_norm"]))

    def put_projected(self, layer: int, fused: Tensor, turn: Tensor, slots: Tensor) -> Tensor:
        """The rest of `project`, after its product."""
        return self._write(layer, self._rotate(fused, turn), slots)

    def begin_finish(self, layer: int, start: int, stop: int, hidden: Tensor, mixed: Tensor) -> LinearWork:
        """The products of `finish` for tokens `[start, stop)`; the result is the hidden states after the layer."""
        weights = self._weights.layers[layer]
        products = (
            Product(
                weights["out"], self._add(weights["out"]), lambda _, out: (out, self._norm(out, weights["mlp_norm"]))
            ),
            Product(
                weights["gate_up"], self._multiply(weights["gate_up"]), lambda before, out: (before, _activate(out))
            ),
            Product(weights["down"], self._add(weights["down"]), _kept),
        )
        return LinearWork(products, start, stop, hidden, mixed.reshape(mixed.shape[0], -1))

    # --- a layer ---

    def _project(self, weights: dict[str, Tensor], hidden: Tensor, turn: Tensor) -> Tensor:
        """Queries, keys and values, the first two rotated: `[tokens, heads + 2 kv_heads, head_dim]`."""
        normed = self._norm(hidden, weights["input_norm"])
        return self._rotate(self.numerics.linear(normed, weights["qkv"], weights.get("qkv_bias")), turn)

    def _rotate(self, fused: Tensor, turn: Tensor) -> Tensor:
        rotated = self.config.heads + self.config.kv_heads
        split = fused.view(-1, rotated + self.config.kv_heads, self.config.head_dim)
        split[:, :rotated] = apply_rotary(split[:, :rotated], turn)
        return split

    def _write(self, layer: int, projected: Tensor, slots: Tensor) -> Tensor:
        """Keys and values into their slots; the queries are left."""
        heads, layer_kv = self.config.heads, self.kv[layer]
        layer_kv.index_copy_(0, slots, projected[:, heads:].reshape(-1, *layer_kv.shape[1:]))
        return projected[:, :heads]

    def _finish(self, weights: dict[str, Tensor], hidden: Tensor, mixed: Tensor) -> Tensor:
        """Output projection and MLP, both with their residual."""
        linear = self.numerics.linear
        hidden = hidden + linear(mixed.reshape(mixed.shape[0], -1), weights["out"], None)
        gate_up = linear(self._norm(hidden, weights["mlp_norm"]), weights["gate_up"], None)
        return hidden + linear(_activate(gate_up), weights["down"], None)

    # The same products by columns.

    def _multiply(self, weight: Tensor, bias: Tensor | None = None) -> ComputeColumns:
        def compute(_: Tensor, given: Tensor, columns: slice, into: Tensor) -> None:
            part = None if bias is None else bias[columns]
            linear_into(into, given, weight[columns], part)

        return compute

    def _add(self, weight: Tensor) -> ComputeColumns:
        def compute(residual: Tensor, given: Tensor, columns: slice, into: Tensor) -> None:
            torch.add(residual[:, columns], self.numerics.linear(given, weight[columns], None), out=into)

        return compute

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (self.config.hidden,), weight, self.config.norm_eps)

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self._weights.outer.get("head", self._weights.outer["embed"])
        return self.numerics.linear(self._norm(hidden, self._weights.outer["norm"]), head, None).float()


def _activate(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _kept(residual: Tensor, result: Tensor) -> tuple[Tensor, Tensor]:
    return residual, result
