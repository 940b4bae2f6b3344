"""Whole runs: every request ends, figures are what the timing says, and the same seed gives the same run everywhere."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import PiecewiseCurve, StepModel
from dunlin.messages.types import i32
from dunlin.workload.traffic.prompts import Job
from simulator.cluster.spec import ClusterSpec, spec_of
from simulator.engine.model import SimulatedEngineSettings, make_engine_ready
from simulator.study.run import SimResult, SimSpec, simulate

FAST = {"slots": 4096, "audit": False, "progress_s": 1.0}


def jobs(count: int, gap_s: float = 0.05, prompt: int = 30, output: int = 12) -> Iterator[Job]:
    """Requests at equal gaps, of different texts."""
    for number in range(count):
        tokens = [(number * 31 + position * 7) % 1000 for position in range(prompt + number % 7)]
        yield Job(number * gap_s, i32(tokens), output + number % 5)


def run(count: int = 20, gap_s: float = 0.05, sim: dict[str, Any] | None = None, **cluster: Any) -> SimResult:
    spec = spec_of(**{"engine": FAST, **cluster})
    return simulate(SimSpec(spec, jobs(count, gap_s), **(sim or {})))


def test_every_request_ends_with_its_tokens_at_times_that_rise() -> None:
    result = run(20)
    assert result.is_complete
    assert [record.outcome for record in result.records] == ["ok"] * 20
    for record, job in zip(result.records, jobs(20), strict=True):
        assert (record.at_s, record.input_tokens) == (job.at_s, len(job.prompt))
        assert len(record.token_s) == job.max_tokens
        assert list(record.token_s) == sorted(record.token_s)
        assert record.end_s == record.token_s[-1]


def test_alone_a_request_takes_what_its_steps_take_and_the_way_there() -> None:
    (record,) = run(1, engine={**FAST, "step_s": 0.5}).records
    # Client's stream 1 ms, its Submit 1, Place 1, Step 1, step 500, StepDone 1, Tokens 1, Delta 1.
    assert record.token_s[0] == pytest.approx(0.507)
    assert record.token_s[1] - record.token_s[0] == pytest.approx(0.5)


def test_a_run_that_is_watched_message_by_message_has_the_same_records() -> None:
    """Tokens for many readers travel as one event where nothing watches, and one by one where decisions are kept."""
    sims = ({"keep_decisions": keep, "keep_tokens": True} for keep in (False, True))
    plain, watched = (run(40, 0.01, instances=2, sim=sim) for sim in sims)
    assert watched.decisions
    assert not plain.decisions
    assert plain.records == watched.records
    assert plain.events == watched.events


def test_samples_show_what_instances_did() -> None:
    result = run(40, instances=2, sim={"sample_s": 0.1})
    assert sorted(result.tracks) == ["instance-0", "instance-1"]
    track = result.tracks["instance-0"]
    assert track.at_s[:2].tolist() == [0.0, pytest.approx(0.1)]
    assert len({len(column) for column in (track.at_s, track.running, track.used_slots, track.step_busy_s)}) == 1
    assert max(track.running) > 0
    total = sum(each.tokens_total[-1] for each in result.tracks.values())
    assert total == sum(len(record.token_s) for record in result.records)
    busy_s = track.step_busy_s[-1]
    assert busy_s == pytest.approx(0.01 * track.steps_total[-1])


def test_a_door_that_is_full_refuses_and_the_record_says_so() -> None:
    result = run(
        60,
        gap_s=0.005,
        dispatcher={"admission.max_queued": 4},
        instance={"scheduler.max_running": 1, "scheduler.max_waiting": 1},
    )
    outcomes = [record.outcome for record in result.records]
    assert set(outcomes) == {"ok", "refused"}
    assert all(record.end_s > 0 for record in result.records)


def test_decisions_are_kept_when_asked_for() -> None:
    result = run(3, sim={"keep_decisions": True})
    kinds = {type(message).__name__ for *_, message in result.decisions}
    assert {"Place", "Step", "GroupOrder"} <= kinds
    assert run(3).decisions == []


def test_tokens_are_kept_when_asked_for() -> None:
    records = run(3, sim={"keep_tokens": True}).records
    assert [len(record.tokens) for record in records] == [len(record.token_s) for record in records]
    assert run(3).records[0].tokens == []


def test_a_run_that_cannot_end_stops_at_its_limit() -> None:
    result = run(2, engine={**FAST, "step_s": 500.0}, sim={"limit_s": 20.0})
    assert not result.is_complete
    assert result.span_s == pytest.approx(20.6, abs=0.6)


def test_a_fitted_timing_drives_the_engine() -> None:
    step = StepModel(PiecewiseCurve((0.0, 100.0), (0.02, 0.04)), decode_context_s=1e-5)
    moves = TransferModels(TransferModel(0.001, 1e9))
    timing = EngineTiming(step, moves, load_s=2.0, slots=1000, kv_bytes_per_token=64)
    settings = SimulatedEngineSettings(make_engine_ready(slots=timing.slots), timing, progress_s=1.0, audit=False)
    spec = ClusterSpec(instances=1, engine=settings)
    (record,) = simulate(SimSpec(spec, jobs(1, prompt=50))).records
    assert record.token_s[0] == pytest.approx(0.007 + 0.03)
    assert record.token_s[1] - record.token_s[0] == pytest.approx(0.0202 + 51e-5)


OTHER = "python3.11" if sys.version_info >= (3, 12) else "python3.12"
SCRIPT = """
import json, sys
from dunlin.messages.types import i32
from dunlin.workload.traffic.prompts import Job
from simulator.study.run import SimSpec, simulate
from simulator.cluster.spec import spec_of
jobs = [Job(n * 0.01, i32([n % 7, *range(20 + n % 9)]), 9 + n % 6) for n in range(60)]
spec = spec_of(instances=3, dispatchers=2, nodes=2, engine={"slots": 160, "audit": False}, preset="llumnix")
result = simulate(SimSpec(spec, jobs, sample_s=0.05, keep_tokens=True, keep_decisions=True))
said = [[r.at_s, r.token_s, r.tokens, r.outcome, r.request, r.end_s] for r in result.records]
said.append([[repr(d[0]), str(d[1]), str(d[2]), repr(d[3])] for d in result.decisions])
said.append({name: track.used_slots.tolist() for name, track in result.tracks.items()})
said.append([result.events, result.span_s])
print(json.dumps(said, default=list))
"""


def said_by(python: str, hash_seed: str, root: Path) -> str:
    """What a whole run gave, in another process with nothing installed but what is in the tree."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root), "PYENV_VERSION": OTHER[6:]}
    done = subprocess.run([python, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_is_the_same_whatever_strings_hash_to(root: Path) -> None:
    first, second = said_by(sys.executable, "1", root), said_by(sys.executable, "2", root)
    assert first == second
    assert json.loads(first)[-1][0] > 1000, "too short a run to say anything"


def test_a_run_is_the_same_on_the_other_python(root: Path) -> None:
    path = shutil.which(OTHER)
    environment = {**os.environ, "PYENV_VERSION": OTHER[6:]}
    if path is None or subprocess.run([path, "-c", ""], env=environment, capture_output=True, check=False).returncode:
        pytest.skip(f"there is no {OTHER} here")
    assert said_by(path, "3", root) == said_by(sys.executable, "4", root)
