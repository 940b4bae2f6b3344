"""Two ranks stop together wherever rank 0 says so, and compute what they would have computed undisturbed."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.transfer.transfer_queue import TransferLimits
from dunlin.messages.engine import Close, Interrupt, Interrupted, StepDone, TransferDone
from dunlin.messages.types import SamplingParams, TransferKind, TransferStatus, Verdict, i64
from tests.engine.build import load, make_checkpoint
from tests.engine.commands import PROMPT, make_open, make_step
from tests.engine.execution.interrupting import Tokens, resume
from tests.engine.execution.running import KV_BYTES_PER_TOKEN, make_move, make_runner, map_host
from tests.engine.ranks.runners import RankedRunner

LIMITS = RunnerLimits(response_s=0.0, piece_tokens=16, piece_columns=64)
FEW_SLOTS = TransferLimits(chunk_bytes=300, turn_bytes=1500, turn_share=0.0)
LONG = [3 + 7 * at % 500 for at in range(120)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(params=["on the host", "on devices"])
def engine(directory: Path, request: pytest.FixtureRequest) -> Iterator[RankedRunner]:
    made = RankedRunner(directory, LIMITS, on_devices=request.param == "on devices")
    yield made
    made.close()


def drain(engine: Any) -> list[Any]:
    events = []
    while engine.busy:
        events += engine.work(lambda: False)
    return events


def tell(engine: Any, *messages: Any) -> list[Any]:
    events = [event for message in messages for event in engine.receive(message)]
    return [*events, *drain(engine)]


def opened(sequence: int, tokens: list[int], **sampling: Any) -> Any:
    return make_open(sequence, tokens, max_tokens=9, sampling=SamplingParams(**{"temperature": 0.0, **sampling}))


def texts(engine: Any, interrupted_at: Random | None = None) -> Tokens:
    """Of a long prompt beside a short one, sampled; the long one's row may leave and come back many times."""
    said, step = Tokens(), 1
    engine.receive(opened(1, LONG))
    engine.receive(opened(2, PROMPT, temperature=1.0, seed=5, logprobs=2))
    engine.receive(make_step(1, (1, 0, 120, 0), (2, 0, 10, 200)))
    while engine.busy:
        left = interrupted_at.randrange(1, 12) if interrupted_at else 1 << 30

        def safepoint() -> bool:
            nonlocal left
            left -= 1
            return left <= 0

        while engine.busy and left > 0:
            said.add(engine.work(safepoint))
        if interrupted_at and engine.busy:
            engine.receive(Interrupt(Verdict.SUSPEND, i64([1]), ticket=step))
            events = engine.work(safepoint)
            said.add(events)
            (gone,) = [event for event in events if isinstance(event, Interrupted)]
            if list(gone.parked) == [1]:
                step += 1
                engine.receive(resume(step, 1))
    for at in range(8):
        ends = 120 + at, 10 + at
        rows = [(1, ends[0], ends[0] + 1, ends[0]), (2, ends[1], ends[1] + 1, 200 + ends[1])]
        said.add(tell(engine, make_step(step + 1 + at, *rows)))
    return said


def test_tokens_are_those_of_one_rank(directory: Path, engine: RankedRunner) -> None:
    expected, found = texts(make_runner(load(directory))), texts(engine)
    assert found.tokens == expected.tokens
    assert [len(each) for each in found.tokens.values()] == [9, 9]
    for sequence, logprobs in expected.logprobs.items():
        assert found.logprobs[sequence] == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_stops_anywhere_change_no_text(directory: Path, engine: RankedRunner, seed: int) -> None:
    """In the deterministic mode, so the bits of what goes on are the same; many stops fall into one prompt."""
    found = texts(engine, Random(seed))
    undisturbed = RankedRunner(directory, LIMITS)
    expected = texts(undisturbed)
    undisturbed.close()
    assert found.tokens == expected.tokens
    assert found.logprobs == expected.logprobs


def test_rows_that_leave_for_good_leave_at_all_ranks(engine: RankedRunner) -> None:
    engine.receive(opened(1, LONG))
    engine.receive(opened(2, PROMPT))
    engine.receive(make_step(1, (1, 0, 120, 0), (2, 0, 10, 200)))
    engine.work(lambda: True)
    events = tell(engine, Interrupt(Verdict.DISCARD, i64([1]), ticket=1), Close(1))
    (done,) = [event for event in events if isinstance(event, StepDone)]
    assert (list(done.sequence), list(done.left)) == ([2], [1])
    assert [event.token for event in tell(engine, make_step(2, (2, 10, 11, 210)))] != []


def test_what_is_refused_the_other_rank_never_hears_of(engine: RankedRunner) -> None:
    assert tell(engine, opened(1, PROMPT), make_step(9, (1, 3, 10, 0), extent_length=i64([3])))
    tell(engine, make_step(1, (1, 0, 10, 0)))
    assert not engine.others_failed


def tier_of(tmp_path: Path) -> Path:
    tier = tmp_path / "tier"
    tier.write_bytes(bytes(1 << 20))
    return tier


def test_regions_have_the_bytes_of_one_rank_and_come_back(
    directory: Path, engine: RankedRunner, tmp_path: Path
) -> None:
    tier, one = tier_of(tmp_path), make_runner(load(directory))
    saved = make_move(1, TransferKind.SLAB_TO_HOST, 1, 9, (20, 4), (24, 5))
    contents, checksums = [], []
    for each in (engine, one):
        tell(each, map_host(tier), opened(1, PROMPT), make_step(1, (1, 0, 10, 20)))
        (done,) = tell(each, saved)
        assert (done.status, done.moved_bytes) == (TransferStatus.OK, 9 * KV_BYTES_PER_TOKEN)
        contents.append(np.frombuffer(tier.read_bytes()[4096:][: done.moved_bytes], dtype=np.float32))
        checksums.append(done.checksum)
    np.testing.assert_allclose(contents[0], contents[1], rtol=1e-4, atol=1e-4)
    assert np.abs(contents[0]).min() > 0
    # What one rank computed, at two: each takes its heads of it, and a step waits for it.
    wrong, restored = [
        make_move(number, TransferKind.HOST_TO_SLAB, number, 9, (50 + 20 * number, 9), checksum=checksum)
        for number, checksum in ((2, checksums[1] ^ 1), (3, checksums[1]))
    ]
    steps = [make_step(each, (each, 9, 10, 59 + 20 * each), after=i64([each])) for each in (2, 3)]
    events = tell(engine, opened(2, PROMPT), opened(3, PROMPT), wrong, restored, *steps)
    statuses = [event.status for event in events if isinstance(event, TransferDone)]
    assert statuses == [TransferStatus.CORRUPT, TransferStatus.OK]
    done = [event for event in events if isinstance(event, StepDone)]
    assert [list(event.dropped) for event in done] == [[2], []]
    (expected,) = [event.token for event in tell(one, Close(1), opened(4, PROMPT), make_step(9, (4, 0, 10, 90)))]
    assert done[1].token == expected


def test_regions_are_copied_beside_a_prompt(directory: Path, tmp_path: Path) -> None:
    """At its safepoints, where the other rank waits for what it is told; some of them stop the step as well."""
    contents = []
    for on_devices in (False, True):
        engine = RankedRunner(directory, replace(LIMITS, transfers=FEW_SLOTS), on_devices=on_devices)
        tier = tier_of(tmp_path)
        tell(engine, map_host(tier), opened(1, PROMPT), make_step(1, (1, 0, 10, 20)), opened(2, LONG))
        assert engine.receive(make_step(2, (2, 0, 120, 100))) == []
        assert engine.work(lambda: True) == [], "it stands at the first safepoint"
        moves = [make_move(ticket, TransferKind.SLAB_TO_HOST, 1, 9, (20, 9)) for ticket in (1, 2)]
        assert [event for move in moves for event in engine.receive(move)] == []
        events: list[Any] = []
        stops = cycle((False, True))
        while engine.busy:
            events += engine.work(partial(next, stops))
        kinds = [type(event) for event in events]
        assert kinds == [TransferDone, TransferDone, StepDone], "they are done before the step"
        assert [event.status for event in events[:2]] == [TransferStatus.OK] * 2
        assert events[0].checksum == events[1].checksum
        contents.append(tier.read_bytes()[4096:][: events[0].moved_bytes])
        tokens = [event.token for event in tell(engine, make_step(3, (2, 120, 121, 220)))]
        contents.append(bytes(str(tokens), "ascii"))
        engine.close()
    assert contents[:2] == contents[2:]
