"""Every family and option: the logits of `transformers`, however a text is cut into steps."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dunlin.engine.attention.base import BatchRow, local_row
from dunlin.engine.attention.spans import slot_span
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import Iteration, forward
from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint
from dunlin.engine.decoder.numerics import Numerics, deterministic_numerics, fast_numerics
from dunlin.engine.decoder.piece_sizes import PieceSizes
from dunlin.engine.decoder.row_progress import RowProgress
from tests.engine.build import Sequences, SteppingClock, load
from tests.engine.family_cases import CASES

transformers = pytest.importorskip("transformers")

LENGTH = 200
RELATIVE = 1e-4
"""Of the greatest logit."""
SLOTS = [*range(300, 500)], [*range(799, 600, -1), 1000]
TEXTS = [torch.randint(0, 96, (LENGTH,), generator=torch.Generator().manual_seed(seed)).tolist() for seed in (1, 2)]


def make(folder: Path, name: str) -> Path:
    family, sizes, options = CASES[name]
    values = {"layers": 4, "hidden": 48, "heads": 4, "kv_heads": 2, "head_dim": 12, "intermediate": 64, "vocab": 96}
    shape = CheckpointShape(**{**values, "max_positions": 512, **sizes}, options=options)
    write_random_checkpoint(folder / name, family, shape, seed=5)
    return folder / name


def oracle(directory: Path) -> list[Tensor]:
    """Logits `[tokens, vocab]` of each text. Eager: the others have no caps."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        return [model(torch.tensor([text])).logits[0] for text in TEXTS]


def row_of(text: int, start: int, first: int, stop: int) -> BatchRow:
    return local_row(start, start + stop - first, slot_span(range(stop), SLOTS[text][:stop]))


def whole_batch(*texts: int) -> DecoderBatch:
    """The texts in one step; logits of all tokens."""
    rows = [row_of(text, at * LENGTH, 0, LENGTH) for at, text in enumerate(texts)]
    slots, tokens = (torch.tensor([each for text in texts for each in of[text]]) for of in (SLOTS, TEXTS))
    positions = torch.arange(LENGTH).repeat(len(texts))
    return DecoderBatch(tokens, positions, slots, rows, torch.arange(len(tokens)))


def begin(decoder: Decoder, batch: DecoderBatch, resumed: Sequence[RowProgress] = ()) -> Iteration:
    """All linear work cut as small as can be."""
    sizes = PieceSizes(0.0, SteppingClock(), least_rows=48, least_columns=16)
    return Iteration(decoder, batch, range(decoder.config.layers), sizes, resumed=resumed)


@torch.inference_mode()
def finish(iteration: Iteration, decoder: Decoder) -> Tensor:
    while not iteration.done:
        iteration.advance()
    return decoder.logits(iteration.hidden)


def by_steps(decoder: Decoder) -> list[Tensor]:
    """Text 0 in chunks, then token by token; text 1 joins later and rides along: logits where each step ends."""
    sequences = Sequences(decoder, dict(enumerate(SLOTS)))
    stops = [[70, 133, *range(180, LENGTH + 1)], [0, 0, 5, 6, 7, 90, *range(187, LENGTH + 1)]]
    found: list[dict[int, Tensor]] = [{}, {}]
    done = [0, 0]
    for step in zip(*stops, strict=False):
        parts = [(text, TEXTS[text][done[text] : stop], done[text]) for text, stop in enumerate(step) if stop]
        logits = sequences.compute(parts)
        for at, (text, new, before) in enumerate(parts):
            done[text] = before + len(new)
            found[text][done[text] - 1] = logits[at]
    return [torch.stack([each.get(at, each[max(each)] * float("nan")) for at in range(LENGTH)]) for each in found]


def assert_equal(ours: Iterable[Tensor], theirs: Iterable[Tensor], what: str) -> None:
    for own, exact in zip(ours, theirs, strict=True):
        known = own.isfinite().all(dim=1)
        assert known.any(), what
        worst = (own - exact)[known].abs().max() / exact.abs().max()
        assert float(worst) < RELATIVE, f"{what}: {float(worst):.1e}"
        best = exact.topk(2).values
        sure = known & ((best[:, 0] - best[:, 1]) > RELATIVE * exact.abs().max())
        assert torch.equal(own.argmax(dim=1)[sure], exact.argmax(dim=1)[sure]), what


def decoder_with(loaded: LoadedModel, numerics: Numerics) -> Decoder:
    return Decoder(loaded.config, loaded.weights, loaded.decoder.kv, numerics)


@pytest.mark.parametrize("name", sorted(CASES))
def test_logits_are_the_oracles(tmp_path: Path, name: str) -> None:
    directory = make(tmp_path, name)
    theirs, loaded, batch = oracle(directory), load(directory), whole_batch(0, 1)
    assert_equal(forward(loaded.decoder, batch).view(2, LENGTH, -1), theirs, "whole")
    assert_equal(by_steps(loaded.decoder), theirs, "chunks, batches and alone")
    assert_equal(finish(begin(loaded.decoder, batch), loaded.decoder).view(2, LENGTH, -1), theirs, "cut by columns")
    assert_equal(forward(decoder_with(loaded, fast_numerics("torch")), batch).view(2, LENGTH, -1), theirs, "torch")
    exact = decoder_with(loaded, deterministic_numerics())
    whole = forward(exact, batch).view(2, LENGTH, -1)
    assert_equal(whole, theirs, "deterministic")
    for own, steps in zip(whole, by_steps(exact), strict=True):
        known = steps.isfinite().all(dim=1)
        assert torch.equal(own[known], steps[known]), "bits depend on the steps"


@pytest.mark.parametrize("name", ["gemma3", "mixtral-window", "llama-mha-biases"])
def test_rows_that_leave_anywhere_and_come_back_have_the_same_logits(tmp_path: Path, name: str) -> None:
    decoder = load(make(tmp_path, name)).decoder
    theirs = forward(decoder, whole_batch(0, 1)).view(2, LENGTH, -1)
    iteration, left = begin(decoder, whole_batch(0, 1)), 3
    pieces = 0
    while not iteration.done:
        with torch.inference_mode():
            iteration.advance()
        pieces += 1
    for after in range(1, pieces, max(pieces // 8, 1)):
        iteration = begin(decoder, whole_batch(0, 1))
        with torch.inference_mode():
            for _ in range(after):
                iteration.advance()
            progress = iteration.leave(0)
        assert_equal([finish(iteration, decoder)], theirs[1:], f"the other row, after {after}")
        if progress.layer < decoder.config.layers:
            again = begin(decoder, whole_batch(0), [progress])
            assert_equal([finish(again, decoder)], theirs[:1], f"the row that left after {after} pieces")
            left -= 1
    assert left < 0
