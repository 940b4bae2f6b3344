"""Layers of decode steps by the kernel: what the decoder computes, for all that models may have; or refused."""

from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dunlin.engine.attention.base import LocalRows, local_row
from dunlin.engine.attention.native.library import KernelUnavailable
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import Iteration
from dunlin.engine.decoder.layer_segments import BeginSegments
from dunlin.engine.decoder.native.decode_steps import (
    MOST_ROWS,
    SOURCE,
    DecodeKernel,
    load_decode_kernel,
)
from tests.engine.build import load, make_checkpoint
from tests.engine.family_cases import YARN

LENGTHS = (1, 17, 64, 255, 256, 257, 600)
BF16, AVX512 = 1, 3
LEVELS = ("the processor's", "AVX-512 BF16", "AVX-512")
"""The last one's instructions every processor with the kernel has, the one before it those with AMX."""
TOLERANCE = 0.01
"""Of the difference to the length: both round to bf16 after each product."""
ROW_TOLERANCE, SHARE = 0.02, 1.3
"""What rounding in bf16 does to a row, and how much more than torch's it may do to all of them. Torch's own rounding is
another one by processor: with AMX its rows are as far from the exact ones as the kernel's.
"""

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "groups": ("llama", {}),
    "one KV head, more query heads than are computed at once": ("llama", {"heads": 11, "kv_heads": 1}),
    "no groups, wide heads": ("mistral", {"heads": 2, "kv_heads": 2, "head_dim": 128}),
    "narrow heads": ("llama", {"heads": 6, "kv_heads": 3, "head_dim": 32}),
    "heads of three blocks": ("llama", {"heads": 4, "kv_heads": 2, "head_dim": 96}),
    "biases of queries, keys and values": ("qwen2", {"heads": 4, "kv_heads": 1, "tied": True}),
    "norms of queries and keys": ("qwen3", {"heads": 4, "kv_heads": 2}),
    "all biases": ("llama", {"options": {"attention_bias": True, "mlp_bias": True}}),
    "a window": ("mistral", {"options": {"sliding_window": 100}}),
    "a part of a head turned": ("phi3", {"options": {"partial_rotary_factor": 0.5}}),
    "angles with a factor": ("llama", {"options": {"rope_scaling": YARN}}),
    "sizes that are no whole blocks": ("llama", {"hidden": 76, "intermediate": 84}),
}


def checkpoint(folder: Path, family: str = "llama", **sizes: Any) -> Path:
    usual = {"layers": 2, "hidden": 96, "heads": 4, "kv_heads": 2, "head_dim": 64, "dtype": "bfloat16"}
    return make_checkpoint(folder, family, **{**usual, **sizes})


def load_decoder(folder: Path, family: str = "llama", **sizes: Any) -> Decoder:
    return load(checkpoint(folder, family, **sizes), dtype="bfloat16").decoder


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return load_decoder(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _kernel(plain: Decoder) -> None:
    try:
        load_decode_kernel(plain)
    except KernelUnavailable as error:
        pytest.skip(str(error))


def with_keys(decoder: Decoder, lengths: tuple[int, ...] = LENGTHS) -> Decoder:
    """The decoder with KV of its own, all of it random."""
    random, shape = torch.Generator().manual_seed(1), decoder.kv[0].shape[1:]
    return decoder.with_kv([torch.randn(sum(lengths) + 8, *shape, generator=random).bfloat16() for _ in decoder.kv])


def scattered_runs(lengths: tuple[int, ...]) -> list[tuple["array[int]", "array[int]"]]:
    """Each row's keys in runs of up to 50 slots, the last rows' first."""
    pieces = [(row, at) for row, length in enumerate(lengths) for at in range(0, length, 50)]
    runs = [(array("q"), array("q")) for _ in lengths]
    slot = {}
    free = 0
    for row, at in reversed(pieces):
        slot[row, at] = free
        free += min(50, lengths[row] - at)
    for row, at in pieces:
        runs[row][0].append(at)
        runs[row][1].append(slot[row, at])
    return runs


def make_batch(lengths: tuple[int, ...] = LENGTHS) -> DecoderBatch:
    count, runs = len(lengths), scattered_runs(lengths)
    places = [slots[-1] + length - 1 - at[-1] for length, (at, slots) in zip(lengths, runs, strict=True)]
    rows = LocalRows(list(range(count)), list(range(1, count + 1)), list(lengths), runs)
    tokens = torch.arange(5, 5 + count)
    return DecoderBatch(tokens, torch.tensor(lengths) - 1, torch.tensor(places), rows, tokens[:0])


def pass_layers(decoder: Decoder, batch: DecoderBatch, begin: BeginSegments | None) -> Tensor:
    iteration = Iteration(decoder, batch, range(len(decoder.kv)), begin_segments=begin)
    while not iteration.done:
        iteration.advance()
    return iteration.hidden


def at_level(kernel: DecodeKernel, level: str) -> DecodeKernel:
    if level == "AVX-512 BF16" and kernel._call.level == AVX512:
        pytest.skip("this processor has no such instructions")
    kernel._call.level = {"AVX-512 BF16": BF16, "AVX-512": AVX512}.get(level, kernel._call.level)
    return kernel


def difference(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("level", LEVELS)
def test_layers_are_the_decoders(tmp_path: Path, name: str, level: str) -> None:
    family, sizes = MODELS[name]
    directory = checkpoint(tmp_path, family, **sizes)
    decoder, exact, batch = load(directory, dtype="bfloat16").decoder, load(directory).decoder, make_batch()
    theirs, ours = with_keys(decoder), with_keys(decoder)
    exact = exact.with_kv([layer.float() for layer in ours.kv])
    kernel = at_level(load_decode_kernel(ours), level)
    wanted = pass_layers(exact, batch, None)
    torchs, found = pass_layers(theirs, batch, None), pass_layers(ours, batch, kernel.begin)
    assert difference(found, wanted) <= SHARE * difference(torchs, wanted)
    for row in range(len(LENGTHS)):
        assert difference(found[row], wanted[row]) < ROW_TOLERANCE
    for one, other in zip(ours.kv, exact.kv, strict=True):
        assert difference(one[batch.slots], other[batch.slots]) < TOLERANCE
        others = torch.ones(len(one), dtype=torch.bool)
        others[batch.slots] = False
        assert torch.equal(one[others].float(), other[others]), "slots of other tokens are not written"


def test_a_rows_bits_depend_neither_on_other_rows_nor_on_threads(plain: Decoder) -> None:
    threads = torch.get_num_threads()
    whole = pass_layers(decoder := with_keys(plain), batch := make_batch(), load_decode_kernel(decoder).begin)
    try:
        torch.set_num_threads(3)
        again = with_keys(plain)
        assert torch.equal(pass_layers(again, batch, load_decode_kernel(again).begin), whole)
    finally:
        torch.set_num_threads(threads)
    for row, length in enumerate(LENGTHS):
        rows = LocalRows([0], [1], [length], scattered_runs(LENGTHS)[row : row + 1])
        part = slice(row, row + 1)
        alone = DecoderBatch(batch.tokens[part], batch.positions[part], batch.slots[part], rows, batch.sampled)
        again = with_keys(plain)
        assert torch.equal(pass_layers(again, alone, load_decode_kernel(again).begin)[0], whole[row])


@pytest.mark.parametrize("count", [1, 5, 6, 7, 16, 17, 31, 64])
def test_any_number_of_rows_is_computed(plain: Decoder, count: int) -> None:
    lengths = tuple(3 + row % 5 for row in range(count))
    theirs, ours = with_keys(plain, lengths), with_keys(plain, lengths)
    wanted = pass_layers(theirs, make_batch(lengths), None)
    found = pass_layers(ours, make_batch(lengths), load_decode_kernel(ours).begin)
    assert all(difference(*rows) < ROW_TOLERANCE for rows in zip(found, wanted, strict=True))


def test_a_kernel_serves_step_after_step_as_rows_come_and_grow(plain: Decoder) -> None:
    theirs, ours = with_keys(plain), with_keys(plain)
    kernel = load_decode_kernel(ours)
    for lengths in ((8, 30), (9, 31), (9, 31, 70), (71, 10)):
        batch = make_batch(lengths)
        wanted, found = pass_layers(theirs, batch, None), pass_layers(ours, batch, kernel.begin)
        assert difference(found, wanted) < ROW_TOLERANCE


def test_layers_may_be_computed_in_parts(plain: Decoder) -> None:
    decoder, batch = with_keys(plain), make_batch()
    whole = pass_layers(decoder, batch, load_decode_kernel(decoder).begin)
    decoder = with_keys(plain)
    hidden = decoder.embed(batch.tokens)
    for given in (None, hidden.clone()):
        step = load_decode_kernel(decoder).begin(batch, given)
        assert step is not None
        assert step.run(0, 1) == 1
        assert step.run(1, 2) == 2
        assert torch.equal(step.hidden, whole)
        assert given is None or torch.equal(given, hidden), "what was given is another's"


def test_what_is_no_number_stays_none(plain: Decoder) -> None:
    decoder, batch = with_keys(plain), make_batch()
    _, slots = scattered_runs(LENGTHS)[3]
    decoder.kv[0][slots[0], 0] = float("nan")
    found = pass_layers(decoder, batch, load_decode_kernel(decoder).begin)
    assert found.isfinite().all(dim=-1).tolist() == [row != 3 for row in range(len(LENGTHS))]


def test_steps_that_it_cannot_compute_are_refused(plain: Decoder) -> None:
    decoder, batch = with_keys(plain), make_batch()
    begin = load_decode_kernel(decoder).begin
    assert begin(batch, None) is not None
    assert begin(batch, decoder.embed(batch.tokens).float()) is None
    assert begin(replace(batch, adapters=torch.zeros(len(LENGTHS), dtype=torch.int64)), None) is None
    assert begin(replace(batch, rows=[local_row(0, 1, 0, 4)]), None) is None
    assert begin(replace(batch, slots=torch.arange(len(LENGTHS) + 1)), None) is None
    assert begin(make_batch((2,) * (MOST_ROWS + 1)), None) is None


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("llama", {"head_dim": 80}),
        ("llama", {"head_dim": 16}),
        ("llama", {"head_dim": 160}),
        ("llama", {"intermediate": 86}),
        ("llama", {"options": {"hidden_act": "gelu"}}),
        ("gemma2", {}),
        ("mixtral", {}),
    ],
)
def test_models_with_parts_that_it_lacks_are_refused(tmp_path: Path, family: str, sizes: dict[str, Any]) -> None:
    decoder = load_decoder(tmp_path, family, **sizes)
    with pytest.raises(KernelUnavailable, match="lacks"):
        load_decode_kernel(decoder)


def test_fp32_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelUnavailable, match="lacks"):
        load_decode_kernel(load(make_checkpoint(tmp_path, head_dim=64)).decoder)


def test_a_library_of_another_source_is_refused(plain: Decoder, tmp_path: Path) -> None:
    edited = tmp_path / "edited.cpp"
    edited.write_bytes(SOURCE.read_bytes() + b"\n")
    with pytest.raises(KernelUnavailable, match="another source"):
        load_decode_kernel(plain, source=edited)
