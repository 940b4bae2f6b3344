"""The decoder: one definition, configured. Llama's shape, with the variations that `ModelConfig` names: a layer has a
variation where it has its block of weights, or the configuration says so when the decoder is made.

The parts of a layer over packed tokens, on weights and KV that it does not own; `iteration` puts them in order. Knows
no sequence, no sampling and no message.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.base import AttentionKind, BatchRow
from dunlin.engine.decoder.host_copies import all_to_device
from dunlin.engine.decoder.layer_operations import LayerOperations
from dunlin.engine.decoder.layer_products import LayerProducts
from dunlin.engine.decoder.linear_work import LinearWork
from dunlin.engine.decoder.loading.weights import Weights
from dunlin.engine.decoder.lora.loading import NO_ADAPTERS, AdapterSet
from dunlin.engine.decoder.numerics import Numerics
from dunlin.engine.decoder.rope import inverse_frequencies, rotary_angles
from dunlin.engine.ranks.collective import ONE_RANK, Collective
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
    adapters: Tensor | None = None
    """`[tokens]` int64, on the host: the number of each token's adapter, 0 for none; None: no token has one."""

    def to(self, device: torch.device) -> "DecoderBatch":
        """The same batch with its tensors on `device`, but `adapters`; itself where they are."""
        if self.tokens.device == device:
            return self
        moved = all_to_device((self.tokens, self.positions, self.slots, self.sampled), device)
        return DecoderBatch(moved[0], moved[1], moved[2], self.rows, moved[3], self.adapters)


class Decoder:
    """The parts of the forward pass over its weights and KV, on their `device`. Run it in `torch.inference_mode`.

    `kv` has every layer, by number; of those whose weights are not held nothing may be touched. `adapters`: those that
    tokens may have. Of several ranks, joined by `collective`, each has some of the heads (`config`): `finish`, its
    work by columns and `logits` are calls that all make together.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kv: Sequence[Tensor],
        numerics: Numerics,
        adapters: AdapterSet = NO_ADAPTERS,
        collective: Collective = ONE_RANK,
    ) -> None:
        self.config = config
        self.collective = collective
        self.kv = kv
        self.numerics = numerics
        self.adapters = adapters
        self._weights = weights
        self.device = weights.outer["embed"].device
        ropes = [rope for rope in (config.rope, config.local_rope) if rope is not None]
        self._ropes = [
            (inverse_frequencies(rope, config.head_dim).to(self.device), rope.attention_factor) for rope in ropes
        ]
        layers = [config.layer(layer) for layer in range(config.layers)]
        self._kinds = [AttentionKind(each.window, config.score_cap, config.score_scale) for each in layers]
        self._rope_of = [int(each.is_local) for each in layers]
        self._operations = LayerOperations(config, weights, numerics, adapters, collective)
        self._norm = self._operations.norm
        self._products = LayerProducts(self._operations)
        # Rounded like the embedding, as in training.
        self._embed_scale = torch.tensor(config.embed_scale, dtype=weights.outer["embed"].dtype).item()

    def with_kv(self, kv: Sequence[Tensor]) -> "Decoder":
        """The same decoder over other KV."""
        return Decoder(self.config, self._weights, kv, self.numerics, self.adapters, self.collective)

    def with_layers(self, layers: Collection[int]) -> "Decoder":
        """The same decoder, holding these of its layers alone, which it computes one after the other."""
        weights = replace(self._weights, layers={layer: self._weights.layers[layer] for layer in layers})
        return Decoder(self.config, weights, self.kv, self.numerics, self.adapters, self.collective)

    def with_numerics(self, numerics: Numerics) -> "Decoder":
        """The same decoder, computed otherwise."""
        return Decoder(self.config, self._weights, self.kv, numerics, self.adapters, self.collective)

    def with_adapters(self, adapters: AdapterSet) -> "Decoder":
        """The same decoder, with other adapters."""
        return Decoder(self.config, self._weights, self.kv, self.numerics, adapters, self.collective)

    @property
    def held_runs(self) -> list[range]:
        """The layers whose weights are held, in runs of consecutive ones."""
        runs: list[range] = []
        for layer in sorted(self._weights.layers):
            follows = bool(runs) and runs[-1].stop == layer
            start = runs.pop().start if follows else layer
            runs.append(range(start, layer + 1))
        return runs

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and hidden states; KV may have another (`kv`)."""
        return self._weights.outer["embed"].dtype

    def attention_kind(self, layer: int) -> AttentionKind:
        """What attention does in a layer."""
        return self._kinds[layer]

    def blocks(self, layer: int) -> dict[str, Tensor]:
        """The weights of a layer that is held; another object once the layer was dropped and came back."""
        return self._weights.layers[layer]

    @property
    def outer(self) -> Mapping[str, Tensor]:
        """The weights outside of the layers: `embed`, `norm`, and `head` unless it is tied to `embed`."""
        return self._weights.outer

    @property
    def head(self) -> Tensor:
        """The weights of the logits, `[vocabulary, hidden]`."""
        return self._weights.outer.get("head", self._weights.outer["embed"])

    @property
    def ropes(self) -> Sequence[tuple[Tensor, float]]:
        """The ways in which layers turn: radians per position `[pairs]` fp32, and the factor of cosines and sines."""
        return self._ropes

    def rotation(self, layer: int) -> int:
        """Which of a position's turns a layer has, where layers have several (`angles`)."""
        return self._rope_of[layer]

    def embed(self, tokens: Tensor) -> Tensor:
        """The hidden states `[tokens, hidden]` before the first layer."""
        embedded = F.embedding(tokens, self._weights.outer["embed"])
        return embedded if self._embed_scale == 1.0 else embedded * self._embed_scale

    def angles(self, positions: Tensor) -> Tensor:
        """What `project` turns by in every layer, for `positions` `[tokens]`."""
        return self.numerics.rows(self._angles, positions)

    def project(
        self, layer: int, hidden: Tensor, turn: Tensor, slots: Tensor, adapters: Tensor | None = None
    ) -> Tensor:
        """Write the tokens' keys and values into `slots`; returns their queries `[tokens, heads, head_dim]`."""
        rows = [hidden, *([] if adapters is None else [adapters])]
        return self._place(layer, self.numerics.rows(partial(self._project, layer), *rows), turn, slots)

    def finish(self, layer: int, hidden: Tensor, mixed: Tensor, adapters: Tensor | None = None) -> Tensor:
        """The rest of a layer after attention, whose result is `mixed` `[tokens, heads, head_dim]`."""
        rows = [hidden, mixed, *([] if adapters is None else [adapters])]
        return self.numerics.rows(partial(self._finish, layer), *rows)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[samples, vocab]` fp32 from hidden states `[samples, hidden]` after the last layer."""
        return (
            self.numerics.rows(self._logits, hidden)
            if len(hidden)
            else hidden.new_empty(0, self.config.vocab, dtype=torch.float32)
        )

    def begin_project(
        self, layer: int, start: int, stop: int, hidden: Tensor, adapters: Tensor | None = None
    ) -> LinearWork:
        """The product before attention for tokens `[start, stop)`; the result is for `put_projected`."""
        normed = self._norm(hidden, self._weights.layers[layer]["input_norm"])
        return LinearWork(self._products.before_attention(layer), start, stop, hidden, normed, adapters)

    def put_projected(self, layer: int, fused: Tensor, turn: Tensor, slots: Tensor) -> Tensor:
        """The rest of `project`, after its product."""
        return self._place(layer, self._split(self._weights.layers[layer], fused), turn, slots)

    def begin_finish(
        self, layer: int, start: int, stop: int, hidden: Tensor, mixed: Tensor, adapters: Tensor | None = None
    ) -> LinearWork:
        """The products of `finish` for tokens `[start, stop)`; the result is the hidden states after the layer."""
        products = self._products.after_attention(layer, adapters is not None)
        return LinearWork(products, start, stop, hidden, mixed.reshape(mixed.shape[0], -1), adapters)

    # --- a layer ---

    def _angles(self, positions: Tensor) -> Tensor:
        turns = [rotary_angles(frequencies, positions, factor) for frequencies, factor in self._ropes]
        return turns[0] if len(turns) == 1 else torch.stack(turns, dim=1)

    def _turn_of(self, layer: int, turn: Tensor) -> Tensor:
        return turn if len(self._ropes) == 1 else turn[:, self._rope_of[layer]]

    def _linear(self, layer: int, block: str, given: Tensor, adapters: Tensor | None) -> Tensor:
        """The block's product, with its bias and what the rows' adapters add."""
        weights = self._weights.layers[layer]
        out = self.numerics.linear(given, weights[block], weights.get(f"{block}_bias"))
        if adapters is not None:
            self._operations.adapt(layer, block, adapters, given, out)
        return out

    def _summed(self, layer: int, block: str, given: Tensor, adapters: Tensor | None) -> Tensor:
        """As `_linear`, of a block whose inputs the ranks share among them."""
        if self.collective.ranks == 1:
            return self._linear(layer, block, given, adapters)
        weights = self._weights.layers[layer]
        part = self.numerics.linear(given, weights[block], None)
        return self._operations.sum(part, weights.get(f"{block}_bias"))

    def _project(self, layer: int, hidden: Tensor, adapters: Tensor | None = None) -> Tensor:
        """Queries, keys and values before they are rotated: `[tokens, heads + 2 kv_heads, head_dim]`."""
        weights = self._weights.layers[layer]
        normed = self._norm(hidden, weights["input_norm"])
        return self._split(weights, self._linear(layer, "qkv", normed, adapters))

    def _split(self, weights: dict[str, Tensor], fused: Tensor) -> Tensor:
        heads, kv_heads = self.config.heads, self.config.kv_heads
        split = fused.view(-1, heads + 2 * kv_heads, self.config.head_dim)
        if self.config.qk_norm:
            split[:, :heads] = self._norm(split[:, :heads], weights["query_norm"])
            split[:, heads : heads + kv_heads] = self._norm(split[:, heads : heads + kv_heads], weights["key_norm"])
        return split

    def _place(self, layer: int, split: Tensor, turn: Tensor, slots: Tensor) -> Tensor:
        """Rotate queries and keys; keys and values into their slots; the queries are left."""
        heads, kv_heads, numerics = self.config.heads, self.config.kv_heads, self.numerics
        turned = self._turn_of(layer, turn)
        if numerics.place is not None:
            numerics.place(split, heads, kv_heads, turned, self.kv[layer], slots)
        else:
            numerics.turn(split, heads + kv_heads, turned)
            numerics.put(self.kv[layer], slots, split[:, heads:])
        return split[:, :heads]

    def _finish(self, layer: int, hidden: Tensor, mixed: Tensor, adapters: Tensor | None = None) -> Tensor:
        """Output projection and MLP, both with their residual."""
        weights = self._weights.layers[layer]
        hidden = self._add_to(hidden, layer, "out", "attention_post_norm", mixed.reshape(mixed.shape[0], -1), adapters)
        normed = self._norm(hidden, weights["mlp_norm"])
        if "router" in weights:
            mixed = self._feed_experts(weights, normed)
            return hidden + self._operations.after(weights.get("mlp_post_norm"), mixed)
        return self._add_to(hidden, layer, "down", "mlp_post_norm", self._gated(layer, normed, adapters), adapters)

    def _gated(self, layer: int, normed: Tensor, adapters: Tensor | None) -> Tensor:
        """What the MLP's gates let through."""
        weights, gated_linear = self._weights.layers[layer], self.numerics.gated_linear
        if gated_linear is not None and self._operations.opens_gates(weights, adapters is not None):
            return gated_linear(normed, weights["gate_up"])
        return self._operations.activate(self._linear(layer, "gate_up", normed, adapters))

    def _add_to(
        self, hidden: Tensor, layer: int, block: str, post_norm: str, given: Tensor, adapters: Tensor | None
    ) -> Tensor:
        """The residual with the block's product of `given`; the residual's tensor may be written."""
        weights, onto = self._weights.layers[layer], self.numerics.linear_onto
        is_plain = adapters is None and self.collective.ranks == 1 and f"{block}_bias" not in weights
        if onto is not None and is_plain and post_norm not in weights:
            return onto(hidden, given, weights[block])
        result = self._summed(layer, block, given, adapters)
        return hidden + self._operations.after(weights.get(post_norm), result)

    def _feed_experts(self, weights: dict[str, Tensor], normed: Tensor) -> Tensor:
        gate_up, down = self._operations.by_expert(weights)
        shares, activate = self._operations.shares(weights, normed), self._operations.activate
        linear, mix = self.numerics.linear, self.numerics.experts
        return mix(normed, shares, gate_up, down, linear, activate).to(normed.dtype)

    def _logits(self, hidden: Tensor) -> Tensor:
        head, cap = self.head, self.config.logit_cap
        normed, ranks = self._norm(hidden, self._weights.outer["norm"]), self.collective.ranks
        logits = self.numerics.linear(normed, head, None) if ranks == 1 else self._gathered_scores(normed, head)
        return (logits if not cap else cap * (logits / cap).tanh()).float()

    def _gathered_scores(self, normed: Tensor, head: Tensor) -> Tensor:
        """The product with `head`, of which each rank computes as many rows: the last ones some that others have."""
        ranks, rank = self.collective.ranks, self.collective.rank
        count = -(-len(head) // ranks)
        firsts = [min(count * each, len(head) - count) for each in range(ranks)]
        parts = self.collective.all_gather(
            self.numerics.linear(normed, head[firsts[rank] : firsts[rank] + count], None)
        )
        own = [parts[each][:, count * each - first :] for each, first in enumerate(firsts)]
        return torch.cat(own, dim=1)
