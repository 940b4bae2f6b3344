"""An engine of two processes: to its parent it is one engine."""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.engine.process.options import CANNOT_CONTINUE, EngineOptions
from dunlin.engine.ranks.membership import check_rank_options
from dunlin.messages.engine import (
    Close,
    EngineFailed,
    EngineReady,
    Interrupt,
    Interrupted,
    Meet,
    Met,
    Remap,
    Resume,
    Unsupported,
)
from dunlin.messages.types import RemapPhase, Verdict, i32, i64
from tests.engine.build import make_checkpoint
from tests.engine.commands import PROMPT, make_open, make_step
from tests.engine.process.test_main import TIMEOUT_S, Child

TEXT = [3 + 7 * at % 500 for at in range(900)]


class TwoRanks(Child):
    """An engine of two ranks. `others` are the processes of the ranks after the first."""

    def __init__(self, model: Path, rank_arena_fd: int | None = None, **overrides: Any) -> None:
        self.rank_arena_fd = os.memfd_create("arena-1") if rank_arena_fd is None else rank_arena_fd
        super().__init__(model, ranks=2, rank_arena_fds=(self.rank_arena_fd,), **overrides)

    @property
    def others(self) -> list[int]:
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), seed=2)


@pytest.fixture(scope="module")
def one(model: Path) -> Iterator[tuple[Child, EngineReady]]:
    made = Child(model)
    yield made, made.receive()
    made.close()


@pytest.fixture(scope="module")
def two(model: Path) -> Iterator[tuple[TwoRanks, EngineReady]]:
    made = TwoRanks(model)
    yield made, made.receive()
    assert made.process.poll() is None
    made.close()


def test_it_says_of_itself_what_one_rank_says(
    one: tuple[Child, EngineReady], two: tuple[TwoRanks, EngineReady]
) -> None:
    said, expected = two[1], one[1]
    assert len(two[0].others) == 1
    for name in ("layers", "slots", "weights_digest", "layer_digests", "kv_bytes_per_token", "kv_dtype", "vocabulary"):
        assert getattr(said, name) == getattr(expected, name)
    assert (said.agent, bool(expected.agent)) == (b"", True)


def test_it_computes_interrupts_and_resumes(one: tuple[Child, EngineReady], two: tuple[TwoRanks, EngineReady]) -> None:
    """The prompt's row leaves at a safepoint of both ranks, and comes back."""
    end, texts = len(TEXT), []
    for child, interrupts in ((one[0], False), (two[0], True)):
        child.send(make_open(1, TEXT, max_tokens=6), make_step(1, (1, 0, end, 0)))
        if interrupts:
            before = child.progress.passed
            while child.progress.passed < before + 5:
                time.sleep(0)
            child.progress.call(1)
            child.send(Interrupt(Verdict.SUSPEND, i64([1]), ticket=1))
            gone, left = child.receive(), child.receive()
            assert isinstance(gone, Interrupted)
            assert (list(gone.parked), list(left.left)) == ([1], [1])
            child.send(Resume(2, i64([1])))
        child.send(*(make_step(3 + at, (1, end + at, end + at + 1, end + at)) for at in range(4)))
        texts.append([child.receive().token[0] for _ in range(5)])
        child.send(Close(1))
    assert texts[0] == texts[1]


def test_what_it_does_not_do_it_says(two: tuple[TwoRanks, EngineReady]) -> None:
    two[0].send(Remap(1, RemapPhase.PREPARE, i32([0, 1])), Meet(Address("engine", "b"), b""))
    refused, met = two[0].receive(), two[0].receive()
    assert isinstance(refused, Unsupported)
    assert isinstance(met, Met)
    assert met.detail


def test_the_end_of_a_rank_is_the_end_of_the_engine_and_kv_outlives_it(model: Path) -> None:
    """At rest and in the midst of a step; the next engine has the same memory, and the same text."""
    first = TwoRanks(model)
    arena = first.receive().arena
    end = len(PROMPT)
    first.send(make_open(), make_step(1, (1, 0, end, 0)))
    token = first.receive().token[0]
    os.kill(first.others[0], signal.SIGKILL)
    failed = first.receive()
    assert isinstance(failed, EngineFailed)
    assert "a rank of this engine has ended" in failed.reason
    assert first.wait() == CANNOT_CONTINUE

    second = TwoRanks(model, first.rank_arena_fd, arena_fd=first.arena_fd)
    assert second.receive().arena == arena
    kept: dict[str, Any] = {"extent_start": i64([0]), "extent_length": i64([end - 1])}
    second.send(
        make_open(**kept), make_step(1, (1, end - 1, end, 40)), make_open(2, TEXT), make_step(2, (2, 0, 900, 90))
    )
    assert second.receive().token[0] == token
    os.kill(second.others[0], signal.SIGKILL)
    events = []
    with suppress(EOFError):
        while True:
            events.append(second.receive())
    assert isinstance(events[-1], EngineFailed)
    assert second.wait() == CANNOT_CONTINUE
    second.socket.close()
    first.close()


def test_no_rank_outlives_the_first(model: Path) -> None:
    engine = TwoRanks(model, standby=True)
    engine.receive_stood_by()
    (other,) = engine.others
    waiting, ended = os.pidfd_open(other), select.poll()
    ended.register(waiting, select.POLLIN)
    engine.close()
    assert ended.poll(1_000 * TIMEOUT_S)
    os.close(waiting)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deterministic": True}, "the deterministic mode has the bits of one rank"),
        ({"adapters": ("0=x",)}, "adapters are computed by one rank"),
    ],
)
def test_what_ranks_cannot_do_is_refused(model: Path, options: dict[str, Any], said: str) -> None:
    values = {"ranks": 2, "kv_bytes": 3 << 20, "name": "a", "incarnation": 7, "parent_pid": 1, **options}
    with pytest.raises(ValueError, match=said):
        check_rank_options(EngineOptions(model, socket_fd=-1, arena_fd=-1, progress_fd=-1, **values))
