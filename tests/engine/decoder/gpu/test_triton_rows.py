"""Norms, gates and turns by Triton's interpreter, against torch."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.kv_numbers import put_slots, rounded
from dunlin.engine.decoder.numerics import silu_gate, turn_heads
from dunlin.engine.decoder.rope import rotary_angles

triton_rows = pytest.importorskip("dunlin.engine.decoder.gpu.triton_rows", exc_type=ModuleNotFoundError)
DTYPES = [torch.float32, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def near(ours: Tensor, theirs: Tensor) -> bool:
    # The interpreter cuts bf16 off where a GPU rounds to the nearest: up to 1/128 each time.
    rtol = 1e-5 if ours.dtype is torch.float32 else 1 / 50
    return ours.dtype is theirs.dtype and torch.allclose(ours.double(), theirs.double(), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 96), (5, 64), (7, 100)])
def test_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    rows, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype)
    assert near(triton_rows.norm(rows, weight, 1e-6), F.rms_norm(rows, weight.shape, weight, 1e-6))


def test_norm_of_some_heads_of_each_token() -> None:
    projected, weight = random(4, 8, 24), random(24)
    part = projected[:, 2:7]
    assert near(triton_rows.norm(part, weight, 1e-5), F.rms_norm(part, weight.shape, weight, 1e-5))


def test_what_it_cannot_norm_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_rows, "MOST_WIDTH", 8)
    rows, weight = random(3, 16), random(16)
    assert torch.equal(triton_rows.norm(rows, weight, 1e-5), F.rms_norm(rows, weight.shape, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [32, 100, 1500])
def test_gate(dtype: torch.dtype, width: int) -> None:
    rows = random(3, 2 * width, dtype=dtype)
    assert near(triton_rows.silu_gate(rows), silu_gate(rows))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "pairs"), [(16, 8), (24, 12), (32, 6)])
def test_turn_leaves_the_other_heads_and_dimensions(dtype: torch.dtype, head_dim: int, pairs: int) -> None:
    ours = random(5, 6, head_dim, dtype=dtype)
    theirs = ours.clone()
    frequencies = 10000.0 ** -(torch.arange(pairs) / pairs)
    angles = rotary_angles(frequencies, torch.tensor([0, 1, 7, 300, 12]))
    triton_rows.turn(ours, 4, angles)
    turn_heads(theirs, 4, angles)
    assert near(ours, theirs)
    assert torch.equal(ours[:, 4:], theirs[:, 4:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_place_writes_fp8_that_ends_at_448(dtype: torch.dtype) -> None:
    ours = 100 * random(5, 8, 20, dtype=dtype)
    ours[1, 5, 3], ours[2, 7, 19] = float("nan"), 9000.0
    theirs = ours.clone()
    angles = rotary_angles(torch.logspace(0, -2, 6), torch.arange(7, 12), 1.0)
    slots = torch.tensor([11, 3, 0, 9, 4])
    kept, wanted = (torch.full((12, 2, 2, 20), 0.5).to(torch.float8_e4m3fn) for _ in range(2))
    triton_rows.place(ours, 4, 2, angles, kept, slots)
    turn_heads(theirs, 6, angles)
    put_slots(wanted, slots, theirs[:, 4:])
    assert torch.equal(kept.float().isnan(), wanted.float().isnan())
    ours, theirs = kept.float().nan_to_num(), wanted.float().nan_to_num()
    assert torch.allclose(ours, theirs, rtol=0.13, atol=2**-9), "neighbours, where what is rounded differs a little"
    assert float((ours == theirs).float().mean()) > 0.97


def test_every_number_is_rounded_to_fp8_as_torch_does() -> None:
    near = torch.arange(-460, 460, 1.0).repeat_interleave(8) * 2.0 ** -torch.arange(8).repeat(920)
    steps = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halves = (steps[:127][1:] + steps[:127][:-1]) / 2  # ties
    least = torch.arange(200) * 2.0**-13
    given = torch.cat([near, steps, halves, -halves, least, -least, torch.tensor([1e30, float("inf"), -1e-30, 0.0])])
    values = F.pad(given, (0, -len(given) % 256)).view(-1, 16, 16)
    tokens = len(values)
    vectors = torch.cat([torch.zeros(tokens, 17, 16), values], 1)  # a query, 16 keys
    kept = torch.zeros(tokens, 2, 16, 16).to(torch.float8_e4m3fn)
    turn = rotary_angles(torch.zeros(8), torch.zeros(tokens, dtype=torch.int64), 1.0)
    triton_rows.place(vectors, 1, 16, turn, kept, torch.arange(tokens))
    wanted = rounded(values, torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(kept.view(torch.uint8)[:, 1], wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "pairs"), [(4, 2, 16, 8), (3, 1, 20, 6), (16, 8, 8, 4)])
def test_place_turns_and_writes(dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, pairs: int) -> None:
    tokens, everything = 5, heads + 2 * kv_heads
    ours = random(tokens, everything, head_dim, dtype=dtype)
    theirs = ours.clone()
    angles = rotary_angles(torch.logspace(0, -2, pairs), torch.arange(7, 7 + tokens), 1.0)
    slots = torch.tensor([11, 3, 0, 9, 4])
    kept, wanted = (torch.full((12, 2, kv_heads, head_dim), 0.5, dtype=dtype) for _ in range(2))
    triton_rows.place(ours, heads, kv_heads, angles, kept, slots)
    turn_heads(theirs, heads + kv_heads, angles)
    put_slots(wanted, slots, theirs[:, heads:])
    assert near(ours[:, :heads], theirs[:, :heads])
    assert near(kept, wanted), "slots that were not named keep what they have"
