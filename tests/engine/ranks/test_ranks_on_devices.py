"""Two ranks with a GPU's code, each with memory that no other process reaches, which Triton interprets on the CPU."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dunlin.engine.process.options import CANNOT_CONTINUE
from dunlin.messages.engine import Close, EngineReady, Interrupt, Interrupted, Resume, TransferDone
from dunlin.messages.types import SamplingParams, TransferKind, TransferStatus, Verdict, i64
from tests.engine.build import make_checkpoint
from tests.engine.commands import PROMPT, make_open, make_step
from tests.engine.execution.running import make_move, map_host
from tests.engine.process.test_main import Child
from tests.engine.ranks.test_processes import TwoRanks

pytest.importorskip("triton", exc_type=ModuleNotFoundError)

TEXT = [3 + 7 * at % 500 for at in range(20)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), hidden=48, heads=4, intermediate=64)


@pytest.fixture(scope="module")
def one(model: Path) -> Iterator[Child]:
    """On the CPU."""
    made = Child(model)
    made.receive()
    yield made
    made.close()


@pytest.fixture(scope="module")
def two(model: Path) -> Iterator[TwoRanks]:
    made = TwoRanks(model, device="interpret")
    ready = made.receive()
    assert isinstance(ready, EngineReady), ready
    yield made
    made.close()


def texts(child: Child, *, ahead: bool = False, suspends: bool = False) -> list[int]:
    """Of a greedy and a sampled text; `ahead`: all of their steps are there at once."""
    end, count = len(TEXT), 3
    child.send(make_open(1, TEXT, max_tokens=9), make_open(2, PROMPT, sampling=SamplingParams(temperature=0.9, seed=4)))
    child.send(make_step(1, (1, 0, end, 0), (2, 0, 10, 100)))
    if suspends:
        before = child.progress.passed
        child.progress.call(1)
        while child.progress.passed == before:
            time.sleep(0)
        child.send(Interrupt(Verdict.SUSPEND, i64([1]), ticket=1))
        assert isinstance(child.receive(), Interrupted)
        child.send(Resume(50, i64([1])))
    steps = [
        make_step(2 + at, (1, end + at, end + at + 1, end + at), (2, 10 + at, 11 + at, 110 + at)) for at in range(count)
    ]
    if ahead:
        child.send(*steps)
    done = [child.receive() for _ in range(1 + suspends)]
    for step in steps:
        if not ahead:
            child.send(step)
        done.append(child.receive())
    child.send(Close(1), Close(2))
    found: dict[int, list[int]] = {1: [], 2: []}
    for each in done:
        for sequence, token in zip(each.sequence, each.token, strict=True):
            found[sequence].append(token)
    assert [len(each) for each in found.values()] == [count + 1] * 2
    return found[1] + found[2]


@pytest.mark.parametrize("how", [{}, {"ahead": True}, {"suspends": True}], ids=["one by one", "ahead", "suspended"])
def test_texts_are_those_of_one_rank_on_the_cpu(one: Child, two: TwoRanks, how: dict[str, Any]) -> None:
    assert texts(two, **how) == texts(one)


def test_kv_goes_to_the_tier_and_comes_back(one: Child, two: TwoRanks, tmp_path: Path) -> None:
    """As the bytes of one rank; beside a step, and before one that waits for it."""
    contents, tokens = [], []
    for child in (one, two):
        tier = tmp_path / "tier"
        tier.write_bytes(bytes(1 << 20))
        child.send(map_host(tier), make_open(1, TEXT), make_step(1, (1, 0, 20, 20)))
        tokens.append(child.receive().token[0])
        child.send(make_move(1, TransferKind.SLAB_TO_HOST, 1, 19, (20, 10), (30, 9)))
        child.send(make_step(2, (1, 20, 21, 40)))
        answers = {type(answer): answer for answer in (child.receive(), child.receive())}
        saved = answers[TransferDone]
        assert saved.status is TransferStatus.OK
        contents.append(np.frombuffer(tier.read_bytes()[4096:][: saved.moved_bytes], dtype=np.float32))
        child.send(
            make_open(2, TEXT),
            make_move(2, TransferKind.HOST_TO_SLAB, 2, 19, (300, 19), checksum=saved.checksum),
            make_step(3, (2, 19, 20, 319), after=i64([2])),
        )
        assert child.receive().status is TransferStatus.OK
        tokens.append(child.receive().token[0])
        child.send(Close(1), Close(2))
    np.testing.assert_allclose(contents[0], contents[1], rtol=1e-3, atol=1e-4)
    assert len(set(tokens)) == 1


def test_a_rank_that_ends_ends_the_engine(two: TwoRanks) -> None:
    """In the midst of a step, in which the first waits for it."""
    two.send(make_open(1, TEXT), make_step(1, (1, 0, 20, 0)))
    os.kill(two.others[0], signal.SIGKILL)
    with suppress(EOFError):
        while True:
            two.receive()
    assert two.wait() == CANNOT_CONTINUE
