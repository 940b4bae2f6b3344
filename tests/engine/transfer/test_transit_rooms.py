"""Rooms that peers write: their bounds, and attention over keys that two processes hold, merged from one."""

import itertools
import json
import random
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor

from dunlin.engine.attention.base import BatchRow, PartialResult, Result, run_pass
from dunlin.engine.attention.registry import ATTENTION_BACKENDS
from dunlin.engine.attention.spans import RoomSpan, slot_run
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.types import Payload, Region, TransferKind, TransferStatus, i64
from tests.engine.attention.reference import reference
from tests.engine.transfer.engines import Engine, peer_transfer
from tests.engine.transfer.key_holder import ASKER, HEAD_DIM, HEADS, KV_HEADS, ROOM_BYTES, Problem

ROOM = 3


@pytest.mark.parametrize(("room", "length"), [(0, 1), (3, 1), (-1, 1), (1, 0), (1, 4097), (1, -5)])
def test_there_is_nothing_outside_a_room(room: int, length: int) -> None:
    rooms = TransitRooms(2, 4096)
    with pytest.raises(TransferError, match="transit room"):
        rooms.view(room, length)


def test_rooms_do_not_overlap() -> None:
    rooms = TransitRooms(2, 4096)
    rooms.view(1, 4096)[:] = 1
    rooms.view(2, 4096)[:] = 2
    assert (rooms.view(1, 4096).max(), rooms.view(2, 1)[0]) == (1, 2)


def split(length: int, seed: int) -> tuple[list[range], list[range]]:
    """The positions cut at random: every other piece is here, the others are there."""
    draw = random.Random(seed)
    cuts = [0, *sorted(draw.sample(range(1, length), draw.randrange(1, 6))), length]
    pieces = [range(start, stop) for start, stop in itertools.pairwise(cuts)]
    first = draw.randrange(2)
    return pieces[first::2], pieces[1 - first :: 2]


def computed(problem: Problem, here: list[range], awaited: tuple[range, ...], parts: list[Any]) -> Result:
    """The result over the keys that are here and the parts that arrived."""
    backend = ATTENTION_BACKENDS[problem.backend]()
    keys = tuple(slot_run(span, span.start) for span in here)
    row = BatchRow(0, problem.tokens, problem.queries, keys, awaited)
    attention = backend.plan([row]).start(problem.query(), problem.keys_values(here), dtype=torch.float32)
    for part in parts:
        attention.add(0, part)
    return run_pass(attention, lambda: None)


def ask(problem: Problem, there: list[range]) -> list[Any]:
    """Another process's contributions, as they lie in our room."""
    engine = Engine("asker", room_bytes=ROOM_BYTES)
    question = json.dumps([engine.access.agent.hex(), asdict(problem), [[s.start, s.stop] for s in there], ROOM])
    command = [sys.executable, "-m", "tests.engine.transfer.key_holder"]
    told = json.loads(subprocess.run(command, input=question + "\n", capture_output=True, text=True, check=True).stdout)
    *parts, (_, checksum, size, _) = told
    look: dict[str, Any] = {"payload": Payload.PARTIAL, "room": ROOM, "length_bytes": size, "checksum": checksum}
    region, extents = Region(0, 1, 0, problem.length), {"extent_start": i64(), "extent_length": i64()}
    kind = TransferKind.PEER_TO_SLAB
    engine.queue.add(peer_transfer(1, ASKER, kind=kind, region=region, **extents, **look))
    (ended,) = engine.finish()
    assert ended.done.status is TransferStatus.OK
    found, at = [], 0
    for what, start, stop, count in parts:
        content = torch.from_numpy(engine.rooms.view(ROOM, size)[at : at + count].copy())
        found.append(part_of(problem, what, range(start, stop), content))
        at += count
    return found


def part_of(problem: Problem, what: str, span: range, content: Tensor) -> RoomSpan | PartialResult:
    if what == "keys":
        kept = content.view(getattr(torch, problem.dtype))
        return RoomSpan(span, kept.view(len(span), 2, KV_HEADS, HEAD_DIM))
    flat, outs = content.view(torch.float32), problem.tokens * HEADS * HEAD_DIM
    shape = (problem.tokens, HEADS, HEAD_DIM)
    return PartialResult(span, flat[:outs].view(shape), flat[outs:].view(problem.tokens, HEADS))


def error_of(ours: Result, problem: Problem) -> float:
    """Relative to the largest value, against float64 over the same keys."""
    whole = problem.keys_values([range(problem.length)])
    wanted, _ = reference(problem.query(), whole, problem.queries)
    return float((ours[0].double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    ("backend", "dtype", "seed"),
    [
        ("torch", "float32", 1),
        ("torch", "float32", 2),
        ("torch", "bfloat16", 3),
        ("deterministic", "float32", 4),
        ("deterministic", "float32", 5),
    ],
)
def test_keys_split_between_two_processes_give_the_whole(backend: str, dtype: str, seed: int) -> None:
    problem = Problem(backend, dtype, length=1700, tokens=40, seed=seed)
    here, there = split(problem.length, seed)
    parts = ask(problem, there)
    found = computed(problem, here, tuple(part.positions for part in parts), parts)
    whole = computed(problem, [range(problem.length)], (), [])
    if backend == "deterministic":
        assert torch.equal(found[0], whole[0])
        assert torch.equal(found[1], whole[1])
    elif dtype == "float32":
        assert torch.allclose(found[0], whole[0], rtol=1e-5, atol=1e-6)
        assert torch.allclose(found[1], whole[1], rtol=1e-5)
    else:
        assert error_of(found, problem) <= 1.1 * error_of(whole, problem)
