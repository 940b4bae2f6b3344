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
        heads, layer_kv = self.config.heads, self.kv[layer]
        projected = self.numerics.rows(partial(self._project, self._weights.layers[layer]), hidden, turn)
        layer_kv.index_copy_(0, slots, projected[:, heads:].reshape(-1, *layer_kv.shape[1:]))
        return projected[:, :heads]

    def finish(self, layer: int, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The rest of a layer after attention, whose result is `mixed` `[tokens, heads, head_dim]`."""
        return self.numerics.rows(partial(self._finish, self._weights.layers[layer]), hidden, mixed)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[samples, vocab]` fp32 from hidden states `[samples, hidden]` after the last layer."""
        return self.numerics.rows(self._logits, hidden) if len(hidden) else torch.empty(0, self.config.vocab)

    def _project(self, weights: dict[str, Tensor], hidden: Tensor, turn: Tensor) -> Tensor:
        """Queries, keys and values, the first two rotated: `[tokens, heads + 2 kv_heads, head_dim]`."""
        config = self.config
        rotated = config.heads + config.kv_heads
        fused = self.numerics.linear(self._norm(hidden, weights["input_norm"]), weights["qkv"], weights.get("qkv_bias"))
        split = fused.view(-1, rotated + config.kv_heads, config.head_dim)
        split[:, :rotated] = apply_rotary(split[:, :rotated], turn)
        return split

    def _finish(self, weights: dict[str, Tensor], hidden: Tensor, mixed: Tensor) -> Tensor:
        """Output projection and MLP, both with their residual."""
        linear = self.numerics.linear
        hidden = hidden + linear(mixed.reshape(mixed.shape[0], -1), weights["out"], None)
        gate, up = linear(self._norm(hidden, weights["mlp_norm"]), weights["gate_up"], None).chunk(2, dim=-1)
        return hidden + linear(F.silu(gate) * up, weights["down"], None)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (self.config.hidden,), weight, self.config.norm_eps)

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self._weights.outer.get("head", self._weights.outer["embed"])
        return self.numerics.linear(self._norm(hidden, self._weights.outer["norm"]), head, None).float()
