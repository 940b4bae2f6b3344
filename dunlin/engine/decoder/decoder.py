"""The decoder: one definition, configured. Llama's shape, with the variations that `ModelConfig` names.

Computes a packed batch of rows over weights and KV that it does not own. Knows no sequence, no sampling and no message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.base import BatchRow, Safepoint, run_pass
from dunlin.engine.decoder.numerics import Numerics
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
    """The forward pass over its weights and KV. `kv` has every layer, by number; of those whose weights are not held
    nothing may be touched.
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

    @torch.inference_mode()
    def forward(self, batch: DecoderBatch, safepoint: Safepoint) -> Tensor:
        """Compute the batch and write its KV. `safepoint` is called between layers and inside long attention.

        Returns:
            logits `[samples, vocab]` fp32.
        """
        rows = self.numerics.rows
        turn = rows(lambda positions: rotary_angles(self._frequencies, positions), batch.positions)
        plan = self.numerics.attention.plan(batch.rows)
        hidden = F.embedding(batch.tokens, self._weights.outer["embed"])
        for layer, weights in self._weights.layers.items():
            projected = rows(partial(self._project, weights), hidden, turn)
            query = self._store(projected, self.kv[layer], batch.slots)
            mixed, _ = run_pass(plan.start(query, self.kv[layer]), safepoint)
            hidden = rows(partial(self._finish, weights), hidden, mixed)
            safepoint()
        return rows(self._logits, hidden.index_select(0, batch.sampled)) if len(batch.sampled) else self._no_logits()

    def _project(self, weights: dict[str, Tensor], hidden: Tensor, turn: Tensor) -> Tensor:
        """Queries, keys and values, the first two rotated: `[tokens, heads + 2 kv_heads, head_dim]`."""
        config = self.config
        rotated = config.heads + config.kv_heads
        fused = self.numerics.linear(self._norm(hidden, weights["input_norm"]), weights["qkv"], weights.get("qkv_bias"))
        split = fused.view(-1, rotated + config.kv_heads, config.head_dim)
        split[:, :rotated] = apply_rotary(split[:, :rotated], turn)
        return split

    def _store(self, projected: Tensor, layer_kv: Tensor, slots: Tensor) -> Tensor:
        """Put keys and values into their slots; what is left are the queries `[tokens, heads, head_dim]`."""
        heads = self.config.heads
        layer_kv.index_copy_(0, slots, projected[:, heads:].reshape(-1, *layer_kv.shape[1:]))
        return projected[:, :heads]

    def _finish(self, weights: dict[str, Tensor], hidden: Tensor, mixed: Tensor) -> Tensor:
        """The rest of a layer after attention: output projection and MLP, both with their residual."""
        linear = self.numerics.linear
        hidden = hidden + linear(mixed.reshape(mixed.shape[0], -1), weights["out"], None)
        gate, up = linear(self._norm(hidden, weights["mlp_norm"]), weights["gate_up"], None).chunk(2, dim=-1)
        return hidden + linear(F.silu(gate) * up, weights["down"], None)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (self.config.hidden,), weight, self.config.norm_eps)

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self._weights.outer.get("head", self._weights.outer["embed"])
        return self.numerics.linear(self._norm(hidden, self._weights.outer["norm"]), head, None).float()

    def _no_logits(self) -> Tensor:
        return torch.empty(0, self.config.vocab)
