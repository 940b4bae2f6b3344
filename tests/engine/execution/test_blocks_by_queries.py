"""A prompt computed chunk by chunk, each chunk cut into a block per member: queries go to where the keys before lie,
blocks of the same step among them. The same as one engine computes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dunlin.messages.engine import Close, Interrupted, StepDone, Unsupported
from dunlin.messages.types import i64
from tests.engine.attention.reference import backend_named
from tests.engine.build import make_checkpoint
from tests.engine.commands import make_open
from tests.engine.execution.interrupting import interrupt
from tests.engine.execution.members import SAMPLING, Member, meet_all, run_all, whole_text
from tests.engine.execution.spread_text import DECODES, TEXT, Block, Spread, samples

LAYERS = 3


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=3, layers=LAYERS)


def cut(chunk: tuple[int, int], masters: Sequence[int], uneven: int) -> list[Block]:
    """A chunk as a block per master; the first is the longest."""
    start, stop = chunk
    each = (stop - start) // len(masters)
    ends = [start + each * (number + 1) + uneven // (number + 1) for number in range(len(masters) - 1)]
    bounds = [start, *ends, stop]
    return [(a, b, at) for a, b, at in zip(bounds, bounds[1:], masters, strict=False)]


CHUNKS = [(0, 390), (390, 400), (400, 1111), (1111, 1300)]


def compute_spread(directory: Path, mode: str, dtype: str, count: int) -> tuple[Any, Any, list[Any], list[Any]]:
    """(tokens of one engine, tokens of the group, K/V of one engine, K/V of the group)."""
    members = meet_all([Member(number, directory, mode, dtype, room_bytes=1 << 14) for number in range(count)])
    spread, base = Spread(members, 1310), len(TEXT) + DECODES - 1
    expected = whole_text(members[0], TEXT, DECODES, 0)
    alone = [kv[:base].clone() for kv in members[0].loaded.decoder.kv]
    for each in members:
        each.poison(range(each.loaded.slots))
    spread.open(*range(count))
    found: list[tuple[int, float]] = []
    for number, chunk in enumerate(CHUNKS):
        masters = [(number + at) % count for at in range(count)] if number != 1 else [0]  # one chunk has one master
        spread.step(cut(chunk, masters, 31 * number))
        run_all(members)
        answers = [event for each in members for event in each.answers()]
        assert all(isinstance(event, StepDone) and not event.left for event in answers), answers
        found += samples(answers)
    master = spread.blocks[-1][2]
    for at in range(len(TEXT), len(TEXT) + DECODES - 1):
        spread.step([(at, at + 1, master)])
        run_all(members)
        found += samples([event for each in members for event in each.answers()])
    return expected, found, alone, [spread.keys(layer) for layer in range(LAYERS)]


@pytest.mark.parametrize("count", [2, 3])
def test_blocks_give_the_bits_of_one_engine_in_the_deterministic_mode(directory: Path, count: int) -> None:
    expected, found, alone, spread = compute_spread(directory, "deterministic", "float32", count)
    assert found == expected
    assert all(torch.equal(*pair) for pair in zip(spread, alone, strict=True))


@pytest.mark.parametrize(("dtype", "within"), [("float32", 1e-5), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("mode", ["torch", "paged"])
def test_blocks_give_the_keys_of_one_engine(directory: Path, mode: str, dtype: str, within: float) -> None:
    if mode == "paged":
        backend_named("paged")
    for count in (2, 3):
        expected, found, alone, spread = compute_spread(directory, mode, dtype, count)
        if dtype == "float32":
            assert [token for token, _ in found] == [token for token, _ in expected]
        for ours, theirs in zip(spread, alone, strict=True):
            assert (ours.float() - theirs.float()).abs().max() <= within * theirs.float().abs().max()


Leave = Callable[[Member], None]


def is_interrupted(master: Member) -> None:
    for _ in range(9):  # a little beyond the first layer's projections
        master.events += master.runner.work(lambda: True)
    master.tell(interrupt(1))
    master.events += master.runner.work(lambda: True)
    assert any(isinstance(event, Interrupted) and list(event.sequence) == [1] for event in master.answers())


def is_interrupted_while_queued(master: Member) -> None:
    master.tell(interrupt(1, up_to_step=99))
    master.answers()


def is_closed(master: Member) -> None:
    master.tell(Close(1))


@pytest.mark.parametrize("leave", [is_interrupted, is_interrupted_while_queued, is_closed])
def test_a_block_whose_row_does_not_run_takes_the_later_ones_with_it(directory: Path, leave: Leave) -> None:
    """Nothing of the chunk counts; computed anew, by other masters, it is as ever."""
    members = meet_all([Member(number, directory, "deterministic") for number in range(3)])
    expected = whole_text(members[0], TEXT, 1, 0)
    spread = Spread(members, 1310)
    spread.open(0, 1, 2)
    spread.step([(0, 600, 0)])
    run_all(members)
    [each.answers() for each in members]
    spread.step([(600, 900, 1), (900, 1000, 0), (1000, 1300, 2)])
    leave(members[1])
    run_all(members)
    ended = [[event for event in each.answers() if isinstance(event, StepDone)] for each in members]
    assert [(list(done.left), list(done.sequence)) for (done,) in (ended[0], ended[2])] == [([1], []), ([1], [])]
    assert all(not done.tokens_computed for done in ended[1])
    spread.blocks = spread.blocks[:1]
    if leave is is_closed:
        spread.open(1)
    spread.step([(600, 1000, 2), (1000, 1300, 1)])
    run_all(members)
    assert samples([event for each in members for event in each.answers()]) == expected


def test_a_sequence_opened_anew_with_its_own_slots_goes_on(directory: Path) -> None:
    """The last master never had the tokens that others sampled: it is closed, and opened with them."""
    members = meet_all([Member(number, directory, "deterministic") for number in range(2)])
    expected = whole_text(members[0], TEXT, 2, 0)
    spread = Spread(members, 1310)
    spread.open(0, 1)
    spread.step(cut((0, 1300), [0, 1], 0))
    run_all(members)
    found = samples([event for each in members for event in each.answers()])
    held = [(start, stop) for start, stop, at in spread.blocks if at == 0]
    extents = {"extent_start": i64([1310 + held[0][0]]), "extent_length": i64([held[0][1] - held[0][0]])}
    tokens = [*TEXT, found[0][0]]
    members[0].tell(Close(1), make_open(1, tokens, prompt_tokens=len(TEXT), sampling=SAMPLING, max_tokens=9, **extents))
    spread.step([(1300, 1301, 0)])
    run_all(members)
    found += samples([event for each in members for event in each.answers()])
    assert found == expected


def test_tokens_that_lie_nowhere_are_refused(directory: Path) -> None:
    """What lies between the row and what is known here must be named by spans, all of it."""
    members = meet_all([Member(number, directory, "deterministic") for number in range(2)])
    spread = Spread(members)
    spread.open(0, 1)
    spread.step([(0, 300, 0), (300, 600, 1)])
    run_all(members)
    [each.answers() for each in members]
    for master, blocks, why in (
        (1, [(0, 290, 0), (300, 600, 1)], "tokens 290 to 600 do not all lie here"),
        (0, [(0, 300, 0), (300, 590, 1)], "token 600 is computed, but the KV before it ends at 300"),
    ):
        spread.blocks = blocks
        spread.step([(600, 700, master)], skip=[1 - master])
        members[master].events += members[master].runner.work(lambda: None)
        (refused,) = members[master].answers()
        assert isinstance(refused, Unsupported)
        assert why in refused.detail
