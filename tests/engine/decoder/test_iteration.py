"""The machine over (layer, phase, piece): where it stands, what a row takes along; bits do not depend on either."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dunlin.engine.attention.base import local_row
from dunlin.engine.decoder.decoder import DecoderBatch
from dunlin.engine.decoder.iteration import Iteration, Phase, WorkCount, forward
from dunlin.engine.decoder.loader import LoadedModel
from dunlin.engine.decoder.piece_sizes import PieceSizes
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
