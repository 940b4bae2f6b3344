"""Steps of two sequences and a third one between, in which rows may leave, and runners that compute them."""

from pathlib import Path
from typing import Any

import pytest

from dunlin.engine.attention import deterministic, fused, paged
from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.messages.engine import Step
from dunlin.messages.types import SamplingParams
from tests.engine.attention.reference import backend_named
from tests.engine.build import load, make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.interrupting import LAYERS, LIMITS, Pauses, Tokens, drain, poisoned_runner, run_to

MODES = ["deterministic", "fast", "paged"]
"""The fast mode twice, with either backend."""
SAMPLING = SamplingParams(temperature=0.0, logprobs=0)
LONG = [(7 * at * at + 3 * at + 11) % 500 for at in range(60)]
SHORT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
FOREIGN = [11, 22, 33, 44, 55]
CUT = 24
"""Tokens of LONG that an earlier step computes."""
BEFORE = LAYERS * (CUT + len(SHORT))
"""Tokens times layers of the step before."""
SLACK = LAYERS * len(FOREIGN) + LAYERS * 2
"""Tokens times layers of the foreign step and of the one after."""


def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a row of a few tokens has several pieces of attention."""
    monkeypatch.setattr(fused, "QUERY_BLOCK", 16)
    monkeypatch.setattr(fused, "KEY_BLOCK", 32)
    monkeypatch.setattr(deterministic, "RUN_QUERIES", 16)
    monkeypatch.setattr(paged, "QUERY_BLOCK", 16)
    monkeypatch.setattr(paged, "PIECE_PAIRS", 16 * 32)


def model_of(mode: str, folder: Path) -> LoadedModel:
    """A model written into the folder and loaded for one of `MODES`."""
    directory = make_checkpoint(folder, seed=2)
    if mode == "paged":
        backend_named("paged")  # skips where there is no kernel
        return load(directory, attention="paged")
    return load(directory, deterministic=mode == "deterministic", attention="torch")


def opens() -> list[Any]:
    return [
        make_open(1, LONG, sampling=SAMPLING),
        make_open(2, SHORT, sampling=SAMPLING),
        make_open(3, FOREIGN, sampling=SAMPLING),
    ]


def before() -> Step:
    """The step before: sequence 2 gets its first token, sequence 1 a part of its prompt, in scattered slots."""
    return make_step(1, (1, 0, CUT, 0), (2, 0, len(SHORT), 100), sample=[0, 1])


def mixed(step: int = 2) -> Step:
    """The step that is interrupted: a chunk with a past, a decode row, and a second chunk."""
    return make_step(step, (1, CUT, len(LONG), 200), (2, len(SHORT), len(SHORT) + 1, 300))


def foreign(step: int) -> Step:
    return make_step(step, (3, 0, len(FOREIGN), 400))


def after(step: int) -> Step:
    """The step that follows for both."""
    one, two = len(LONG), len(SHORT) + 1
    return make_step(step, (1, one, one + 1, 500), (2, two, two + 1, 600))


def undisturbed(loaded: LoadedModel) -> Tokens:
    found, runner = Tokens(), poisoned_runner(loaded)
    for message in (*opens(), before(), mixed(), foreign(3), after(4)):
        found.add(runner.receive(message))
    found.add(drain(runner))
    return found


def safepoints(loaded: LoadedModel) -> tuple[int, int]:
    """Safepoints of the mixed step, and the tokens times layers that it computes."""
    runner = poisoned_runner(loaded)
    run_to(runner, 0, *opens(), before())
    drain(runner)
    count, computed = Pauses(), runner.steps.count.finished
    runner.receive(mixed())
    while runner.busy:
        runner.work(count)
    return count.passed, runner.steps.count.finished - computed


def at_safepoint(loaded: LoadedModel, at: int, limits: RunnerLimits = LIMITS) -> tuple[EngineRunner, Tokens]:
    """A runner in the mixed step, where it has passed the `at`-th safepoint."""
    runner, found = poisoned_runner(loaded, limits), Tokens()
    for message in (*opens(), before()):
        runner.receive(message)
    found.add(drain(runner))
    found.add(run_to(runner, at, mixed()))
    return runner, found
