"""A layer's linear work as products by columns (`LinearWork`), for steps that stop between them."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from dunlin.engine.decoder.experts import ExpertWork
from dunlin.engine.decoder.layer_operations import LayerOperations
from dunlin.engine.decoder.linear_work import AfterProduct, ComputeColumns, Product
from dunlin.engine.decoder.numerics import Into


class LayerProducts:
    """The products of both stretches of a layer: before attention, and after it."""

    def __init__(self, operations: LayerOperations) -> None:
        self._operations = operations
        self._numerics = operations.numerics

    def before_attention(self, layer: int) -> list[Product]:
        """From the normed hidden states to queries, keys and values."""
        weights = self._operations.weights(layer)
        compute = self._multiply(weights["qkv"], weights.get("qkv_bias"))
        return [Product(weights["qkv"], compute, _kept, adapt=partial(self._operations.adapt, layer, "qkv"))]

    def after_attention(self, layer: int, has_adapters: bool) -> list[Product]:
        """From what attention mixed to the hidden states after the layer."""
        is_mixed = "router" in self._operations.weights(layer)
        return [*(self._expert_products(layer) if is_mixed else self._feed_products(layer, has_adapters))]

    def _feed_products(self, layer: int, has_adapters: bool) -> Iterator[Product]:
        operations, weights = self._operations, self._operations.weights(layer)
        gated_into = self._numerics.gated_into
        yield self._adding(layer, "out", "attention_post_norm", self._normed(weights))
        if gated_into is not None and operations.opens_gates(weights, has_adapters):
            yield _gating(weights["gate_up"], gated_into)
        else:
            yield Product(
                weights["gate_up"],
                self._multiply(weights["gate_up"], weights.get("gate_up_bias")),
                lambda residual, out: (residual, operations.activate(out)),
                adapt=partial(operations.adapt, layer, "gate_up"),
            )
        yield self._adding(layer, "down", "mlp_post_norm", _kept)

    def _expert_products(self, layer: int) -> Iterator[Product]:
        operations, weights = self._operations, self._operations.weights(layer)
        assert operations.config.experts is not None
        by_expert = operations.by_expert(weights)
        work = ExpertWork(operations.config.experts, *by_expert, self._numerics.linear, operations.activate)
        normed_after = self._normed(weights)

        def begin(residual: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
            hidden, normed = normed_after(residual, out)
            return work.begin(hidden, normed, operations.shares(weights, normed))

        def end(hidden: Tensor, mixed: Tensor) -> Tensor:
            return hidden + operations.after(weights.get("mlp_post_norm"), mixed.to(hidden.dtype))

        yield self._adding(layer, "out", "attention_post_norm", begin)
        yield from work.products(end)

    def _normed(self, weights: dict[str, Tensor]) -> AfterProduct:
        return lambda _, out: (out, self._operations.norm(out, weights["mlp_norm"]))

    def _adding(self, layer: int, block: str, post_norm: str, then: AfterProduct) -> Product:
        """A product whose result goes to the residual; with a norm before that it has to be whole."""
        operations, weights = self._operations, self._operations.weights(layer)
        adapt = partial(operations.adapt, layer, block)
        weight, added, norm = weights[block], weights.get(f"{block}_bias"), weights.get(post_norm)
        if operations.collective.ranks > 1:
            return Product(
                weight,
                self._multiply(weight, None),
                lambda residual, out: then(residual, residual + operations.after(norm, operations.sum(out, added))),
            )
        if norm is None:
            return Product(weight, self._add(weight, added), then, adapt=adapt)
        return Product(
            weight,
            self._multiply(weight, added),
            lambda residual, out: then(residual, residual + operations.norm(out, norm)),
            adapt=adapt,
        )

    def _multiply(self, weight: Tensor, bias: Tensor | None) -> ComputeColumns:
        def compute(_: Tensor, given: Tensor, columns: slice, into: Tensor) -> None:
            part = None if bias is None else bias[columns]
            self._numerics.linear_into(into, given, weight[columns], part)

        return compute

    def _add(self, weight: Tensor, bias: Tensor | None) -> ComputeColumns:
        onto = self._numerics.linear_onto_into

        def compute(residual: Tensor, given: Tensor, columns: slice, into: Tensor) -> None:
            if onto is not None and bias is None:
                onto(into, residual[:, columns], given, weight[columns])
                return
            part = None if bias is None else bias[columns]
            torch.add(residual[:, columns], self._numerics.linear(given, weight[columns], part), out=into)

        return compute


def _gating(weight: Tensor, gated_into: Into) -> Product:
    """What the MLP's gates let through, by columns of both: for each, two of `weight` are multiplied."""
    gates, ups = weight.chunk(2)

    def compute(_: Tensor, given: Tensor, columns: slice, into: Tensor) -> None:
        gated_into(into, given, gates[columns], ups[columns])

    return Product(gates, compute, _kept, part=2.0)


def _kept(residual: Tensor, result: Tensor) -> tuple[Tensor, Tensor]:
    return residual, result
