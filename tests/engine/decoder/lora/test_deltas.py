"""What adapters add to a product: rows of several adapters side by side, and no look at what the device has."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.decoder.decoder import DecoderBatch
from dunlin.engine.decoder.lora.deltas import AddDeltas, BlockDelta, DeltaPart, add_gathered, add_whole

ADAPTERS = torch.tensor([2, 0, 1, 2, 3])
"""Number 3 changes another product."""


def make_delta(seed: int) -> BlockDelta:
    """Of two modules, the first two and the last four columns."""
    random = torch.Generator().manual_seed(seed)
    first, last = (torch.randn(columns, 3, generator=random) for columns in (2, 4))
    parts = DeltaPart(slice(0, 3), slice(0, 2), first), DeltaPart(slice(3, 6), slice(2, 6), last)
    return BlockDelta(torch.randn(6, 8, generator=random), parts)


DELTAS = {1: make_delta(1), 2: make_delta(2)}


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(rows, weight, bias)


@pytest.mark.parametrize("add", [add_gathered, add_whole])
def test_each_row_gets_what_its_adapter_adds(add: AddDeltas) -> None:
    given, out = torch.randn(5, 8), torch.randn(5, 6)
    wanted = out.clone()
    for row, number in enumerate(ADAPTERS.tolist()):
        for part in DELTAS[number].parts if number in DELTAS else ():
            wanted[row, part.columns] += part.up @ DELTAS[number].down[part.ranks] @ given[row]
    add(linear, ADAPTERS, DELTAS, given, out)
    assert torch.allclose(out, wanted, atol=1e-4)


@pytest.mark.parametrize("add", [add_gathered, add_whole])
def test_nothing_of_the_device_is_waited_for(add: AddDeltas) -> None:
    """Tensors of the device "meta" have no values: reading one on the host is an error."""
    device = torch.device("meta")
    slots = torch.arange(5)
    batch = DecoderBatch(slots, slots, slots, [], slots, ADAPTERS).to(device)
    assert (batch.slots.device, batch.adapters is ADAPTERS) == (device, True)
    given, out = torch.empty(5, 8, device=device), torch.empty(5, 6, device=device)
    add(linear, ADAPTERS, {number: delta.to(device) for number, delta in DELTAS.items()}, given, out)
    with pytest.raises(NotImplementedError):
        add(linear, ADAPTERS.to(device), DELTAS, given, out)
