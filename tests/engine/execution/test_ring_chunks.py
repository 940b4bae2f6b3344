"""A prompt that goes round chunk by chunk: the stripes' K/V circulate, and queries go to where earlier chunks stay."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dunlin.messages.engine import StepDone, Unsupported
from dunlin.messages.types import i8
from dunlin.model.kv_dtypes import FP8
from tests.engine.attention.reference import backend_named
from tests.engine.build import make_checkpoint
from tests.engine.execution.interrupting import interrupt
from tests.engine.execution.members import Member, meet_all, run_all, whole_text
from tests.engine.execution.spread_text import DECODES, STRIPES_AT, TEXT, Block, Spread, samples

LAYERS = 3
SLOTS = 1310
"""Where the text's slots begin."""

Chunk = tuple[Sequence[int], Sequence[Block]]
"""The members of a ring in turn, and what stays where."""
ON_ONE: list[Chunk] = [([0, 1], [(0, 390, 1)]), ([1, 0], [(390, 830, 1)]), ([0, 1], [(830, 1300, 1)])]
"""The fewest members: all of it stays at the one."""
THREE: list[Chunk] = [
    ([0, 1], [(0, 390, 0)]),
    ([2, 0, 1], [(390, 400, 2), (400, 700, 1)]),  # a member joins
    ([1, 2], [(700, 1111, 2)]),  # one is done, and only answers
    ([0, 2, 1], [(1111, 1200, 1), (1200, 1300, 0)]),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=3, layers=LAYERS)


def compute_chunks(
    directory: Path, mode: str, dtype: str, count: int, chunks: Sequence[Chunk], kv_dtype: str = ""
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """(tokens of one engine, tokens of the group, K/V of one engine, K/V of the group); stripes' slots are voided
    after each chunk.
    """
    members = meet_all([Member(number, directory, mode, dtype, 1 << 14, kv_dtype) for number in range(count)])
    spread = Spread(members, SLOTS)
    expected = whole_text(members[0], TEXT, DECODES, 0)
    alone = [kv[: len(TEXT)].clone() for kv in members[0].loaded.decoder.kv]
    for each in members:
        each.poison(range(each.loaded.slots))
    spread.open(*range(count))
    found: list[Any] = []
    for stripes, kept in chunks:
        spread.ring(stripes, kept)
        run_all(members)
        found += samples(all_done(members))
        for each in members:
            each.poison(range(STRIPES_AT, STRIPES_AT + len(TEXT)))
    keys = [spread.keys(layer) for layer in range(LAYERS)]
    for at in range(len(TEXT), len(TEXT) + DECODES - 1):
        spread.step([(at, at + 1, spread.sampler)])
        run_all(members)
        found += samples(all_done(members))
    return expected, found, alone, keys


def all_done(members: Sequence[Member]) -> list[Any]:
    answers = [event for each in members for event in each.answers()]
    assert all(isinstance(event, StepDone) and not event.left for event in answers), answers
    return answers


@pytest.mark.parametrize(("count", "chunks"), [(2, ON_ONE), (3, THREE)])
def test_chunks_that_go_round_give_the_bits_of_one_engine(directory: Path, count: int, chunks: list[Chunk]) -> None:
    expected, found, alone, spread = compute_chunks(directory, "deterministic", "float32", count, chunks)
    assert found == expected
    assert all(torch.equal(*pair) for pair in zip(spread, alone, strict=True))


@pytest.mark.parametrize(("dtype", "within"), [("float32", 1e-5), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("mode", ["torch", "paged"])
def test_chunks_that_go_round_give_the_keys_of_one_engine(
    directory: Path, mode: str, dtype: str, within: float
) -> None:
    if mode == "paged":
        backend_named("paged")
    for count, chunks in ((2, ON_ONE), (3, THREE)):
        expected, found, alone, spread = compute_chunks(directory, mode, dtype, count, chunks)
        if dtype == "float32":
            assert [token for token, _ in found] == [token for token, _ in expected]
        for ours, theirs in zip(spread, alone, strict=True):
            assert (ours.float() - theirs.float()).abs().max() <= within * theirs.float().abs().max()


def test_keys_that_are_kept_in_fp8_go_round_in_fp8(directory: Path) -> None:
    expected, found, alone, spread = compute_chunks(directory, "torch", "float32", 3, THREE, FP8)
    assert [token for token, _ in found] == [token for token, _ in expected]
    for ours, theirs in zip(spread, alone, strict=True):
        assert ours.dtype is theirs.dtype is torch.float8_e4m3fn
        assert float((ours.float() == theirs.float()).float().mean()) > 0.9, "what is rounded differs a little"
        assert torch.allclose(ours.float(), theirs.float(), rtol=0.15, atol=0.05)


def test_a_window_reaches_into_earlier_chunks(tmp_path: Path) -> None:
    options = {"sliding_window": 600, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 5}
    directory = make_checkpoint(tmp_path, "gemma2", seed=2, layers=LAYERS, options=options)
    expected, found, _, _ = compute_chunks(directory, "deterministic", "float32", 3, THREE)
    assert found == expected


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_chunk_of_which_a_row_left_is_computed_again(directory: Path, gone: int) -> None:
    """Or a holder ends its step: all steps end, what earlier chunks left stays, and members may be others then."""
    members = meet_all([Member(number, directory, "deterministic") for number in range(3)])
    expected = whole_text(members[0], TEXT, 1, 0)
    spread = Spread(members, SLOTS)
    spread.open(0, 1, 2)
    spread.ring([0, 2], [(0, 600, 2)])
    run_all(members)
    all_done(members)
    spread.ring([0, 1], [(600, 900, 1)])
    for each in members * 5:
        each.events += each.runner.work(lambda: True) if each.runner.busy else []
    members[gone].tell(interrupt())
    run_all(members)
    done = [[event for event in each.answers() if isinstance(event, StepDone)] for each in members]
    assert [len(each) for each in done] == [1, 1, 1]
    assert all(list(each.left) == [1] for (each,) in done[:2]) if gone == 2 else list(done[gone][0].left) == [1]
    del spread.blocks[1:]
    spread.ring([2, 0], [(600, 1300, 0)])
    run_all(members)
    assert samples(all_done(members)) == expected


WRONG: dict[str, dict[str, Any]] = {
    "before token 390": {"span_stop": (400, None)},
    "token 390 is computed, but the KV before it ends at 0": {"span_stop": (380, None)},
    "a stride of a span that its holder is asked for": {"span_stride": (2, None)},
    "columns of different lengths: asked spans": {"span_asked": i8([1])},
}


@pytest.mark.parametrize("detail", WRONG)
def test_what_cannot_be_asked_is_refused(directory: Path, detail: str) -> None:
    """Tokens 0 to 390 lie at member 0; member 1 is told something else."""
    members = meet_all([Member(number, directory, "torch") for number in range(2)])
    spread = Spread(members, SLOTS)
    spread.open(0, 1)
    spread.blocks = [(0, 390, 0)]
    step = spread.ring_step(members[1], [0, 1], [(390, 500, 1)])
    (name, value), *_ = WRONG[detail].items()
    column = getattr(step, name)
    changed = type(column)(column.typecode, [value[0], *column[1:]]) if isinstance(value, tuple) else value
    members[1].tell(replace(step, **{name: changed}))
    if members[1].runner.busy:
        members[1].events += members[1].runner.work(lambda: None)
    (refused,) = members[1].answers()
    assert isinstance(refused, Unsupported)
    assert detail in refused.detail
