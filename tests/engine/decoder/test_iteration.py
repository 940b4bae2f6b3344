"""The machine over (layer, phase, piece): where it stands, what a row takes along; bits do not depend on either."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dunlin.engine.attention.base import local_row
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import Iteration, Phase, forward
from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.decoder.piece_sizes import PieceSizes
from dunlin.engine.decoder.row_progress import WorkCount
from tests.engine.build import load, make_checkpoint

TOKENS = [(7 * at * at + 3 * at + 11) % 500 for at in range(70)]
LENGTHS = (40, 30)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_checkpoint(tmp_path_factory.mktemp("model"), seed=1), deterministic=True)


def make_batch(first_slot: int = 0) -> DecoderBatch:
    """Two prompts of 40 and 30 tokens."""
    places = torch.arange(70)
    rows = [local_row(0, 40, first_slot, 40), local_row(40, 70, first_slot + 40, 30)]
    positions = torch.cat([torch.arange(40), torch.arange(30)])
    return DecoderBatch(torch.tensor(TOKENS), positions, places + first_slot, rows, torch.tensor([39, 69]))


def make_iteration(loaded: LoadedModel, least: int | None = 16, **overrides: object) -> Iteration:
    sizes = None if least is None else PieceSizes(0.0, lambda: 0.0, least)
    return Iteration(loaded.decoder, make_batch(), range(3), sizes, **overrides)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def fast(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_checkpoint(tmp_path_factory.mktemp("fast"), "qwen2", seed=1), dtype=request.param)


@pytest.fixture
def operations() -> list[int]:
    """The multiply-adds of each product of `counting`."""
    return []


@pytest.fixture
def counting(fast: LoadedModel, operations: list[int]) -> LoadedModel:
    """`fast`, with every product counted and none within a kernel of more."""
    numerics = fast.decoder.numerics

    def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        operations.append(rows.shape[0] * weight.numel())
        return numerics.linear(rows, weight, bias)

    def into_columns(into: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        operations.append(rows.shape[0] * weight.numel())
        numerics.linear_into(into, rows, weight, bias)

    plain = replace(numerics, linear_onto=None, linear_onto_into=None, gated_linear=None, gated_into=None)
    counted = replace(plain, linear=linear, linear_into=into_columns)
    return replace(fast, decoder=Decoder(fast.config, fast.weights, fast.decoder.kv, counted))


def make_cut_by_columns(fast: LoadedModel) -> Iteration:
    return Iteration(fast.decoder, make_batch(), range(3), column_sizes())


def column_sizes() -> PieceSizes:
    """The least pieces: blocks of 16 rows, 64 columns at a time."""
    return PieceSizes(0.0, lambda: 0.0, least_rows=16, least_columns=64)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Small products have kernels of their own for each shape."""
    tolerance = 1e-4 if expected.dtype is torch.float32 else 0.05
    assert torch.allclose(found.float(), expected.float(), atol=tolerance, rtol=tolerance)


def finish(iteration: Iteration) -> torch.Tensor:
    while not iteration.done:
        iteration.advance()
    return iteration.hidden


def test_linear_work_is_in_pieces_and_the_bits_are_those_of_one(loaded: LoadedModel) -> None:
    """A rest of less than half a piece goes with the one before it: 16, 16, 16, 22."""
    whole, cut, count = make_iteration(loaded, None), make_iteration(loaded), 0
    stages: list[tuple[int, Phase]] = []
    while not cut.done:
        stages.append((cut.layer, cut.phase))
        cut.advance()
        count += 1
    for layer in range(3):
        assert stages.count((layer, Phase.PROJECT)) == stages.count((layer, Phase.FINISH)) == 4
    assert stages == sorted(stages)
    assert torch.equal(finish(whole), cut.hidden)
    assert torch.equal(forward(loaded.decoder, make_batch()), loaded.decoder.logits(cut.hidden[[39, 69]]))


def test_a_row_tells_where_it_stands_and_goes_on_there(loaded: LoadedModel) -> None:
    """In another batch, of one row alone; the other row is compacted and goes on. Everything is computed once."""
    expected = finish(make_iteration(loaded, None))
    at = ahead = 0
    while True:
        count = WorkCount()
        iteration = make_iteration(loaded, count=count)
        for _ in range(at):
            iteration.advance()
        if iteration.done:
            break
        layer, phase = iteration.layer, iteration.phase
        progress = iteration.leave(0)
        if progress.layer == layer:
            assert progress.projected in ((0, 16, 32, 40) if phase is Phase.PROJECT else (40,))
            assert progress.finished in ((0, 16, 32) if phase is Phase.FINISH else (0,))
        else:
            assert (progress.layer, progress.block, progress.projected, phase) == (layer + 1, 0, 0, Phase.FINISH)
            ahead += 1
        assert progress.size_bytes >= 40 * 96 * 4
        assert torch.equal(finish(iteration), expected[40:])
        batch = make_batch()
        alone = DecoderBatch(
            batch.tokens[:40], batch.positions[:40], batch.slots[:40], batch.rows[:1], batch.sampled[:1]
        )
        sizes = PieceSizes(0.0, lambda: 0.0, 16)
        resumed = Iteration(loaded.decoder, alone, range(3), sizes, resumed=[progress], count=count)
        assert torch.equal(finish(resumed), expected[:40])
        assert (count.projected, count.finished) == (3 * 70, 3 * 70)
        at += 1
    assert at > 3 * 8
    assert ahead == 3, "once in each layer it had finished it before the other row"


def test_a_row_leaves_once(loaded: LoadedModel) -> None:
    iteration = make_iteration(loaded)
    iteration.advance()
    iteration.leave(1)
    with pytest.raises(ValueError, match="row 1 is not under way"):
        iteration.leave(1)
    for _ in range(20):  # rows are compacted meanwhile
        iteration.advance()
    with pytest.raises(ValueError, match="row 1 is not under way"):
        iteration.leave(1)
    finish(iteration)
    with pytest.raises(ValueError, match="row 0 is not under way"):
        iteration.leave(0)


def test_layers_may_be_computed_in_parts(loaded: LoadedModel, tmp_path: Path) -> None:
    expected = finish(make_iteration(loaded, None))
    first = finish(Iteration(loaded.decoder, make_batch(), range(2)))
    rest = finish(Iteration(loaded.decoder, make_batch(), range(2, 3), hidden=first.clone()))
    assert torch.equal(rest, expected)


# -- blocks that are cut by columns, too ----------------------------------------------------------------------------


def test_a_block_is_cut_by_columns_of_its_products(counting: LoadedModel, operations: list[int]) -> None:
    whole = finish(Iteration(counting.decoder, make_batch(), range(3)))
    whole_operations, kv = sum(operations), [layer[:70].clone() for layer in counting.decoder.kv]
    operations.clear()
    cut, pieces, most = make_cut_by_columns(counting), 0, 0
    while not cut.done:
        before = len(operations)
        cut.advance()
        pieces += 1
        most = max(most, sum(operations[before:]))
    assert_close(cut.hidden, whole)
    for layer, expected in zip(counting.decoder.kv, kv, strict=True):
        assert_close(layer[:70], expected)
    assert sum(operations) == whole_operations
    assert most <= 22 * 96 * 160, "the largest block, 96 columns of the longest product"
    assert pieces > 3 * 4 * (2 + 1 + 5 + 1)


@pytest.mark.parametrize(("row", "start", "stop", "blocks"), [(0, 0, 40, 3), (1, 40, 70, 2)])
def test_a_row_takes_along_what_is_begun_of_its_tokens(
    counting: LoadedModel, operations: list[int], row: int, start: int, stop: int, blocks: int
) -> None:
    """Wherever it leaves: no product is computed twice for it, and what it leaves unfinished is written by nobody."""
    expected = finish(make_cut_by_columns(counting)).clone()
    total, at, begun = sum(operations), 0, 0
    while True:
        for layer in counting.decoder.kv:
            layer[:70].fill_(float("nan"))
        operations.clear()
        iteration, count = make_cut_by_columns(counting), WorkCount()
        for _ in range(at):
            iteration.advance()
        if iteration.done:
            break
        layer_at = iteration.layer
        progress = iteration.leave(row)
        begun += progress.begun is not None
        assert_close(finish(iteration), torch.cat([expected[:start], expected[stop:]]))
        if progress.layer == layer_at:
            assert counting.decoder.kv[layer_at][start + progress.projected : stop].isnan().all()
        batch, tokens = make_batch(), slice(start, stop)
        rows = [local_row(0, stop - start, start, stop - start)]
        alone = DecoderBatch(
            batch.tokens[tokens], batch.positions[tokens], batch.slots[tokens], rows, torch.tensor([stop - start - 1])
        )
        resumed = Iteration(counting.decoder, alone, range(3), column_sizes(), resumed=[progress], count=count)
        for _ in range(at % 3):  # and once more
            if not resumed.done:
                resumed.advance()
        if not resumed.done:
            progress = resumed.leave(0)
            resumed = Iteration(counting.decoder, alone, range(3), column_sizes(), resumed=[progress], count=count)
        assert_close(finish(resumed), expected[start:stop])
        assert sum(operations) == total
        at += 1
    assert begun == 3 * blocks * (1 + 6), "in the middle of each block of each layer"
