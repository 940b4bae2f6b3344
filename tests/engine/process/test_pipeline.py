"""Two engine processes, each with a part of the layers: hidden states go there, sampled tokens back, by transfer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.engine import Step, StepDone, Transfer, TransferDone, Unsupported
from dunlin.messages.types import Payload, Priority, Region, TransferKind, TransferStatus, i64
from tests.engine.build import make_checkpoint
from tests.engine.commands import PROMPT, make_open, make_step
from tests.engine.process.conftest import FIRST, SECOND, Pair
from tests.engine.process.test_main import Child

CUT = 2
"""Layers of the first stage, of three."""
TEXTS = {1: PROMPT, 2: [3, 1, 4, 1, 5, 9, 2, 6] * 4}
# (sequence, start, stop) of each row, and whether it samples: chunks of prompts beside decode rows.
STEPS: list[list[tuple[int, int, int, int]]] = [
    [(1, 0, 10, 1), (2, 0, 7, 0)],
    [(2, 7, 20, 0), (1, 10, 11, 1)],
    [(1, 11, 12, 1), (2, 20, 32, 1)],
    [(1, 12, 13, 1), (2, 32, 33, 1)],
    [(2, 33, 34, 1), (1, 13, 14, 1)],
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=2)


@pytest.fixture
def stages(two_engines: Callable[..., Pair]) -> Pair:
    return two_engines()


def step_of(number: int, offset: int = 0, samples: bool = True, **overrides: Any) -> Step:
    """Step `number` of all; `offset` is added to the sequences, and 100 times that to their slots."""
    rows = [
        (sequence + offset, start, stop, 100 * (sequence + offset) + start)
        for sequence, start, stop, _ in STEPS[number - 1]
    ]
    return make_step(number, *rows, sample=[samples * row[3] for row in STEPS[number - 1]], **overrides)


def sending(ticket: int, step: int, room: int, peer: Address, peer_room: int) -> Transfer:
    """What the step leaves in the room goes to the peer's, behind it."""
    return Transfer(
        ticket, TransferKind.SLAB_TO_PEER, 0, Region(0, 1, 0, 1), i64(), i64(), peer=peer, peer_handle=peer_room,
        priority=Priority.ACTIVATION, payload=Payload.ACTIVATION, room=room, step=step,
    )  # fmt: skip


def look(sent: Transfer, done: TransferDone) -> Transfer:
    """The receiver's own look at what arrived."""
    return replace(
        sent, kind=TransferKind.PEER_TO_SLAB, peer=None, room=sent.peer_handle, peer_handle=0, step=0,
        length_bytes=done.moved_bytes, checksum=done.checksum,
    )  # fmt: skip


def answered(child: Child, count: int) -> list[Any]:
    """So many answers; the step's first, then those of transfers by their tickets."""
    events = [child.receive() for _ in range(count)]
    return sorted(events, key=lambda each: (isinstance(each, TransferDone), getattr(each, "ticket", 0)))


def tokens_of(done: StepDone) -> list[tuple[int, int]]:
    return sorted(zip(done.sequence, done.token, strict=True))


def test_two_stages_give_the_tokens_of_one_engine(stages: Pair) -> None:
    first, second = stages
    whole = []
    second.send(*(make_open(10 + number, text) for number, text in TEXTS.items()))
    for number in range(1, len(STEPS) + 1):
        second.send(step_of(number, offset=10))
        whole.append([(sequence - 10, token) for sequence, token in tokens_of(second.receive())])
    for each in stages:
        each.send(*(make_open(number, text) for number, text in TEXTS.items()))
    back: list[Transfer] = []
    for number in range(1, len(STEPS) + 1):
        there = sending(2 * number, number, 1, SECOND, 2)
        after = i64([1] if back else [])
        lower = step_of(number, samples=False, layer_stop=CUT, hidden_in=4, hidden_out=1, after=after)
        first.send(*back, lower, there)
        *looked, sent = answered(first, 2 + len(back))[1:]
        assert [each.status for each in (*looked, sent)] == [TransferStatus.OK] * (1 + len(back))
        upper = step_of(number, layer_start=CUT, hidden_in=2, hidden_out=3, after=i64([2 * number]))
        behind = sending(1, number, 3, FIRST, 4)
        second.send(look(there, sent), upper, behind)
        done, told, seen = answered(second, 3)
        assert (told.status, seen.status) == (TransferStatus.OK, TransferStatus.OK)
        assert tokens_of(done) == whole[number - 1]
        back = [look(behind, told)]


def test_hidden_states_that_came_damaged_are_not_used(stages: Pair) -> None:
    first, second = stages
    for each in stages:
        each.send(make_open(1))
    there = sending(5, 1, 1, SECOND, 2)
    first.send(make_step(1, (1, 0, 10, 0), sample=[0], layer_stop=CUT, hidden_out=1), there)
    _, sent = answered(first, 2)
    upper = make_step(1, (1, 0, 10, 0), layer_start=CUT, hidden_in=2, after=i64([5]))
    second.send(replace(look(there, sent), checksum=sent.checksum ^ 1), upper)
    assert second.receive().status is TransferStatus.CORRUPT
    refused = second.receive()
    assert isinstance(refused, Unsupported)
    assert refused.detail == "room 2 has nothing of tokens 0 to 10 of sequence 1"
