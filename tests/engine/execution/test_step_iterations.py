"""How a step's work is cut: which steps are computed by segments of layers, and into how many pieces others are."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from tests.engine.build import SteppingClock, load, make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.interrupting import Pauses
from tests.engine.execution.running import run
from tests.engine.execution.test_ahead import PROMPTS, M, N, decode, open_both

LAYERS = 3
LONG = [(7 * at * at + 3 * at + 11) % 500 for at in range(40)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_checkpoint(tmp_path_factory.mktemp("model"), layers=LAYERS), deterministic=True)


def offered_to(segments: list[int]) -> Callable[[DecoderBatch, Tensor | None], None]:
    """Segments that compute nothing, and remember the tokens of each batch that they are offered."""

    def begin(batch: DecoderBatch, hidden: Tensor | None) -> None:
        segments.append(len(batch.tokens))

    return begin


@pytest.mark.parametrize(("may_leave", "wanted"), [(False, [2]), (True, [N + M, 2, 2])])
def test_segments_are_offered_decode_rows_that_no_row_leaves_or_all_where_rows_may_leave_them(
    loaded: LoadedModel, may_leave: bool, wanted: list[int]
) -> None:
    """Of two prompts, their next tokens, and the ones after these in a step that is preemptible."""
    offered: list[int] = []
    runner = EngineRunner(
        loaded.decoder, loaded.slots, SteppingClock(), begin_segments=offered_to(offered),
        rows_may_leave_segments=may_leave,
    )  # fmt: skip
    open_both(runner)
    done = run(runner, PROMPTS, decode(2, 1, 2), decode(3, 1, 2, preemptible=True))
    assert [each.step for each in done] == [1, 2, 3]
    assert offered == wanted


def pieces(loaded: LoadedModel, piece_rows: int, piece_tokens: int | None) -> int:
    """Safepoints of a prompt of 40 tokens where a clock tells nothing of the pieces."""
    decoder = loaded.decoder
    numerics = replace(decoder.numerics, has_fixed_pieces=True, piece_rows=piece_rows, piece_columns=None)
    fixed = Decoder(decoder.config, loaded.weights, decoder.kv, numerics)
    limits, passed = RunnerLimits(response_s=1e9, piece_tokens=piece_tokens), Pauses()
    runner = EngineRunner(fixed, loaded.slots, SteppingClock(), limits)
    runner.receive(make_open(1, LONG))
    runner.receive(make_step(1, (1, 0, len(LONG), 0)))
    while runner.busy:
        runner.work(passed)
    return passed.passed


@pytest.mark.parametrize(
    ("piece_rows", "piece_tokens", "blocks"), [(24, None, 2), (16, None, 3), (64, 16, 3), (16, 64, 1)]
)
def test_pieces_of_fixed_size_are_those_of_the_limits_or_of_the_numerics(
    loaded: LoadedModel, piece_rows: int, piece_tokens: int | None, blocks: int
) -> None:
    """Each further block of the prompt is a piece more of both stretches of linear work in each layer."""
    whole = pieces(loaded, 64, None)
    assert pieces(loaded, piece_rows, piece_tokens) == whole + 2 * LAYERS * (blocks - 1)
