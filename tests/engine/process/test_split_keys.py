"""Two engine processes, each with a part of a text's keys, cut at random: the master asks, the holder answers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dunlin.messages.engine import Close, Interrupted, StepDone
from dunlin.messages.types import GroupKind, SamplingParams, i32, i64
from tests.engine.build import make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.interrupting import interrupt
from tests.engine.execution.members import cut_at_random, no_rows, serve, span_columns
from tests.engine.process.conftest import FIRST, SECOND, Pair
from tests.engine.process.test_main import Child

SAMPLING = SamplingParams(temperature=0.0, logprobs=0)
TEXT = [(7 * at * at + 3 * at + 11) % 500 for at in range(700)]
OTHER = [(5 * at * at + at + 3) % 500 for at in range(800)]
CHUNK, STEPS = 20, 3
LENGTH = len(TEXT) - CHUNK
ROWS = [(LENGTH, len(TEXT)), *((len(TEXT) + more, len(TEXT) + more + 1) for more in range(STEPS - 1))]
Piece = tuple[int, int, int]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=2)


def sampled(event: Any) -> tuple[int, float]:
    assert isinstance(event, StepDone), event
    return event.token[0], event.logprob[0]


def whole_text(child: Child) -> list[tuple[int, float]]:
    """What an engine alone samples; the KV of the text stays in its slots."""
    child.send(make_open(9, TEXT, sampling=SAMPLING), make_step(1, (9, 0, LENGTH, 0), sample=[0]))
    child.receive()
    found = []
    for number, (start, stop) in enumerate(ROWS):
        child.send(make_step(2 + number, (9, start, stop, start)))
        found.append(sampled(child.receive()))
    child.send(Close(9))
    return found


def write_over(child: Child, pieces: Sequence[Piece]) -> None:
    """Let another text's KV lie in the slots of these pieces, and of all tokens after them."""
    slots = [(start, stop - start) for start, stop, _ in pieces] + [(LENGTH, CHUNK + STEPS)]
    count = sum(length for _, length in slots)
    columns = {"extent_row": i32([0] * len(slots)), "extent_start": i64(each[0] for each in slots)}
    step = make_step(40, (8, 0, count, 0), sample=[0], extent_length=i64(each[1] for each in slots), **columns)
    child.send(make_open(8, OTHER[:count]), step)
    assert child.receive().tokens_computed == count
    child.send(Close(8))


def group(peer: Any, exchange: int) -> dict[str, Any]:
    rooms = {"own_room": i64([3]), "peer_room": i64([3])}
    return {"group": GroupKind.MASTERS, "peers": (peer,), "exchange": exchange, **rooms}


def ask(master: Child, number: int, row: tuple[int, int], there: Sequence[Piece]) -> None:
    spans = span_columns([(0, (start, stop, 1, 0)) for start, stop, _ in there])
    master.send(make_step(number, (1, *row, row[0]), **spans, **group(SECOND, number)))


def answer(holder: Child, number: int, row: tuple[int, int], there: Sequence[Piece]) -> None:
    part = serve(0, [(1, *row, [(start, stop, start) for start, stop, _ in there])])
    holder.send(no_rows(100 + number, serve=part, **group(FIRST, number)))


@pytest.mark.parametrize("is_exact", [True, False], ids=["deterministic", "fast"])
def test_keys_split_at_random_give_the_tokens_of_one_engine(two_engines: Callable[..., Pair], is_exact: bool) -> None:
    master, holder = two_engines(deterministic=is_exact)
    for seed in range(2):
        expected = whole_text(master)
        assert whole_text(holder) == expected
        pieces = cut_at_random(LENGTH, 2, seed)
        pieces[0] = (*pieces[0][:2], 1)
        here, there = ([piece for piece in pieces if piece[2] == who] for who in (0, 1))
        write_over(master, there)
        write_over(holder, here)
        starts = i64(start if who == 0 else -1 for start, _, who in pieces)
        extents = {"extent_start": starts, "extent_length": i64(stop - start for start, stop, _ in pieces)}
        master.send(make_open(1, TEXT, sampling=SAMPLING, **extents))
        found = []
        for number, row in enumerate(ROWS):
            exchange = 10 * seed + number + 1
            ask(master, exchange, row, there)
            answer(holder, exchange, row, there)
            found.append(sampled(master.receive()))
            assert list(holder.receive().sequence) == []
        master.send(Close(1))
        if is_exact:
            assert found == expected
        else:
            assert [token for token, _ in found] == [token for token, _ in expected]
            assert [logprob for _, logprob in found] == pytest.approx([each for _, each in expected], rel=1e-5)


def test_a_master_whose_holder_dies_is_interrupted(two_engines: Callable[..., Pair]) -> None:
    """It waits, and still reads its socket."""
    master, holder = two_engines()
    whole_text(master)
    there = [(0, 600, 1)]
    extents = {"extent_start": i64([-1, 600]), "extent_length": i64([600, LENGTH - 600])}
    master.send(make_open(1, TEXT, sampling=SAMPLING, **extents))
    holder.process.kill()
    ask(master, 1, ROWS[0], there)
    master.progress.call(7)
    master.send(interrupt(ticket=7, up_to_step=1))
    left, done = master.receive(), master.receive()
    assert isinstance(left, Interrupted)
    assert (list(left.sequence), list(left.parked), list(done.left)) == ([1], [0], [1])
    master.send(make_step(2, (1, LENGTH, len(TEXT), LENGTH)))
    assert "do not all lie here" in master.receive().detail
