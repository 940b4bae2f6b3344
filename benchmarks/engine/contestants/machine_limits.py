"""The machine's limits as a contestant: reading memory, a large product, and the linear layers of the model alone.

    python -m benchmarks.engine.contestants.machine_limits

`read` reads `READ_BYTES`; `product` multiplies `PRODUCT`; `linears M` computes the linear layers of all decoder layers
for M tokens, one after another as a step does, each weight read anew; `head M` the one that makes logits. bf16.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.engine.contestants.serve import serve
from benchmarks.engine.roofline import PRODUCT, READ_BYTES
from benchmarks.engine.workloads import Setup
from dunlin.model.config import load_config
from dunlin.model.weight_layout import layer_blocks


class MachineLimits:
    """Owns random weights of the model's shapes."""

    def __init__(self, setup: Setup) -> None:
        config = load_config(Path(setup.checkpoint))
        shapes = [block.shape for block in layer_blocks(config, 0) if len(block.shape) == 2]
        self._layers = [_random(*shape) for _ in range(config.layers) for shape in shapes]
        self._head = [_random(config.vocab, config.hidden)]
        self._read = torch.ones(READ_BYTES // 8, dtype=torch.int64)
        rows, inputs, outputs = PRODUCT
        self._product = _random(rows, inputs), _random(outputs, inputs)
        self._limits: dict[str, Callable[[int], object]] = {
            "read": lambda _: self._read.max(),
            "product": lambda _: F.linear(*self._product),
            "linears": lambda rows: _multiply(self._layers, rows),
            "head": lambda rows: _multiply(self._head, rows),
        }

    @torch.inference_mode()
    def run(self, name: str) -> list[int]:
        """See `Contestant`."""
        what, _, rows = name.partition(" ")
        self._limits[what](int(rows or 0))
        return []


def _random(outputs: int, inputs: int) -> Tensor:
    return torch.randn(outputs, inputs, dtype=torch.bfloat16)


def _multiply(weights: list[Tensor], rows: int) -> None:
    given = {weight.shape[1]: torch.ones(rows, weight.shape[1], dtype=torch.bfloat16) for weight in weights}
    for weight in weights:
        F.linear(given[weight.shape[1]], weight)


if __name__ == "__main__":
    serve(MachineLimits)
