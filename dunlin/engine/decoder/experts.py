"""The feed-forward of a layer with experts: each token goes through a few of them, and their results add up by share.

Results add up in fp32, in the order of the experts, so that neither the cut nor the batch changes the sum.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.decoder.linear_work import Product
from dunlin.model.layer_config import ExpertConfig

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Activate = Callable[[Tensor], Tensor]
MixExperts = Callable[[Tensor, Tensor, Tensor, Tensor, Linear, Activate], Tensor]
"""(normed, shares, gate_up, down, linear, activate) -> `[tokens, hidden]` fp32; see `mix_gathered`."""


def expert_shares(logits: Tensor, experts: ExpertConfig) -> Tensor:
    """The share of every expert in every token, `[tokens, experts]` fp32: 0 where it is not chosen."""
    chances = logits.float().softmax(dim=-1)
    best, chosen = chances.topk(experts.active, dim=-1)
    if experts.renormalise:
        best = best / best.sum(dim=-1, keepdim=True)
    return torch.zeros_like(chances).scatter_(1, chosen, best)


def mix_gathered(
    normed: Tensor, shares: Tensor, gate_up: Tensor, down: Tensor, linear: Linear, activate: Activate
) -> Tensor:
    """Every expert computes the tokens that chose it. `gate_up` `[experts, 2 width, hidden]`, `down` `[experts, hidden,
    width]`.
    """
    mixed = torch.zeros_like(normed, dtype=torch.float32)
    for expert, rows in _tokens_by_expert(shares):
        fed = linear(activate(linear(normed[rows], gate_up[expert], None)), down[expert], None)
        mixed.index_add_(0, rows, fed * shares[rows, expert, None])
    return mixed


def mix_whole(
    normed: Tensor, shares: Tensor, gate_up: Tensor, down: Tensor, linear: Linear, activate: Activate
) -> Tensor:
    """Every expert that any token chose computes all tokens, so that its products have one shape; exact zeros are added
    to the others.
    """
    mixed = torch.zeros_like(normed, dtype=torch.float32)
    for expert in _chosen(shares):
        fed = linear(activate(linear(normed, gate_up[expert], None)), down[expert], None)
        mixed += fed * shares[:, expert, None]
    return mixed


def _tokens_by_expert(shares: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The experts that any token chose, each with the tokens that did. However many they are, this waits for the device
    once: from the counts on all sizes are known.
    """
    counts: list[int] = (shares != 0).sum(dim=0).tolist()
    tokens = torch.nonzero_static(shares.t(), size=sum(counts))[:, 1]
    return ((expert, rows) for expert, rows in enumerate(torch.split(tokens, counts)) if len(rows))


def _chosen(shares: Tensor) -> list[int]:
    chosen: list[int] = shares.any(dim=0).nonzero()[:, 0].tolist()
    return chosen


class ExpertWork:
    """The same as products by columns, for work that is cut: expert after expert.

    What lasts from one to the next stands in the residual, fp32: `[tokens, hidden | hidden | experts | hidden]`, the
    hidden states, what experts get, shares, and the sum so far.
    """

    def __init__(
        self, experts: ExpertConfig, gate_up: Tensor, down: Tensor, linear: Linear, activate: Activate
    ) -> None:
        self._experts = experts
        self._gate_up = gate_up
        self._down = down
        self._linear = linear
        self._activate = activate
        self._hidden = down.shape[1]

    def begin(self, hidden: Tensor, normed: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """(residual, given) of the first product."""
        residual = torch.cat((hidden.float(), normed.float(), shares, torch.zeros_like(hidden, dtype=torch.float32)), 1)
        return residual, normed[:, :1]

    def products(self, last: Callable[[Tensor, Tensor], Tensor]) -> Iterator[Product]:
        """`last(hidden, sum of the experts)` is the layer's result."""
        part = self._experts.active / self._experts.count
        for expert in range(self._experts.count):
            is_last = expert == self._experts.count - 1
            yield Product(self._gate_up[expert], self._up(expert), self._activated, part)
            yield Product(self._down[expert], self._back(expert), self._added(expert, last if is_last else None), part)

    def _up(self, expert: int) -> Callable[[Tensor, Tensor, slice, Tensor], None]:
        def compute(residual: Tensor, given: Tensor, columns: slice, into: Tensor) -> None:
            rows = self._rows(residual, expert)
            normed = residual[rows, self._hidden : 2 * self._hidden].to(given.dtype)
            into[rows] = self._linear(normed, self._gate_up[expert, columns], None)

        return compute

    def _back(self, expert: int) -> Callable[[Tensor, Tensor, slice, Tensor], None]:
        def compute(residual: Tensor, given: Tensor, columns: slice, into: Tensor) -> None:
            rows = self._rows(residual, expert)
            into[rows] = self._linear(given[rows], self._down[expert, columns], None)

        return compute

    def _activated(self, residual: Tensor, result: Tensor) -> tuple[Tensor, Tensor]:
        return residual, self._activate(result)

    def _added(
        self, expert: int, last: Callable[[Tensor, Tensor], Tensor] | None
    ) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        def after(residual: Tensor, result: Tensor) -> tuple[Tensor, Tensor]:
            rows = self._rows(residual, expert)
            mixed = residual[:, 2 * self._hidden + self._experts.count :]
            mixed[rows] += result[rows] * residual[rows, 2 * self._hidden + expert, None]
            if last is None:
                return residual, result[:, :1]
            return residual, last(residual[:, : self._hidden].to(result.dtype), mixed)

        return after

    def _rows(self, residual: Tensor, expert: int) -> Tensor:
        return residual[:, 2 * self._hidden + expert].nonzero()[:, 0]


def by_expert(block: Tensor, experts: int) -> Tensor:
    """A block of weights with one expert after another in its rows, as `[experts, rows of one, inputs]`."""
    return block.view(experts, -1, block.shape[1])


ACTIVATIONS: dict[str, Activate] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
    "relu": F.relu,
}


def gated(activation: str) -> Activate:
    """What turns gate and up, side by side, into the input of the product after them."""
    function = ACTIVATIONS[activation]

    def activate(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return function(gate) * up

    return activate
