"""Adapters in the engine's conversation: a sequence is opened with one, and keeps it in every step."""

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from dunlin.engine.decoder.lora.loading import load_adapters
from dunlin.engine.execution.runner import EngineRunner
from dunlin.messages.engine import StepDone, Unsupported
from dunlin.messages.types import Verdict
from dunlin.model.errors import ModelError
from dunlin.model.lora.adapter import load_adapter
from tests.engine.adapter_files import ALL, write_adapter
from tests.engine.build import SteppingClock, load, make_checkpoint
from tests.engine.commands import PROMPT, make_open, make_step
from tests.engine.execution.interrupting import LIMITS, drain, interrupt, resume, run_to
from tests.engine.execution.running import N, generate, make_runner, run

COUNT = 8


class Loaded:
    """A model in the deterministic mode with two adapters, and their digests; "" is of none."""

    def __init__(self, folder: Path) -> None:
        self.directory = make_checkpoint(folder, seed=2)
        self.loaded = load(self.directory, deterministic=True)
        self.folders = [
            write_adapter(folder / "one", self.directory, seed=1),
            write_adapter(folder / "two", self.directory, ALL[:3], seed=2, rank=7),
        ]
        self.digests = [load_adapter(each, self.loaded.config).digest for each in self.folders]
        adapters = load_adapters(dict(zip(self.digests, self.folders, strict=True)), self.loaded.config, torch.float32)
        self.model = replace(self.loaded, decoder=self.loaded.decoder.with_adapters(adapters))
        self.choices = ["", *self.digests]
        runner = make_runner(self.model)
        self.texts = [generate(runner, 1, PROMPT, COUNT, 0, adapter=each) for each in self.choices]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return Loaded(tmp_path_factory.mktemp("model"))


def tokens_of(events: list[StepDone], sequence: int) -> list[int]:
    found = [dict(zip(event.sequence, event.token, strict=True)) for event in events]
    return [each[sequence] for each in found if sequence in each]


def open_all(trial: Loaded, runner: EngineRunner) -> None:
    for number, adapter in enumerate(trial.choices, 1):
        assert runner.receive(make_open(number, adapter=adapter)) == []


def test_each_adapter_has_a_text_of_its_own(trial: Loaded) -> None:
    assert len({tuple(text) for text in trial.texts}) == 3


def test_without_adapters_the_text_is_the_models(trial: Loaded) -> None:
    assert generate(make_runner(trial.loaded), 1, PROMPT, COUNT, 0) == trial.texts[0]


def test_rows_of_all_in_one_step_say_what_each_says_alone(trial: Loaded) -> None:
    runner = make_runner(trial.model)
    open_all(trial, runner)
    spans = [(0, N), *((N + at, N + at + 1) for at in range(COUNT - 1))]
    steps = [
        make_step(step, *((number, start, stop, 100 * number + start) for number in (1, 2, 3)))
        for step, (start, stop) in enumerate(spans)
    ]
    done = run(runner, *steps)
    assert [tokens_of(done, number) for number in (1, 2, 3)] == trial.texts


def test_an_adapter_that_is_not_loaded_is_refused(trial: Loaded) -> None:
    (event,) = make_runner(trial.model).receive(make_open(1, adapter="ff" * 16))
    assert isinstance(event, Unsupported)
    assert event.what == "Open"
    assert "ff" * 16 in event.detail
    assert isinstance(make_runner(trial.loaded).receive(make_open(1, adapter=trial.digests[0]))[0], Unsupported)


@pytest.mark.parametrize("at", [1, 3, 7, 20, 33])
def test_rows_that_leave_and_resume_keep_their_adapter(trial: Loaded, at: int) -> None:
    runner = EngineRunner(trial.model.decoder, trial.model.slots, SteppingClock(), LIMITS)
    open_all(trial, runner)
    step = make_step(1, *((number, 0, N, 100 * number) for number in (1, 2, 3)))
    events = run_to(runner, at, step)
    if not any(isinstance(event, StepDone) for event in events):
        events += runner.receive(interrupt(2, verdict=Verdict.SUSPEND))
        events += drain(runner)
        events += [*runner.receive(resume(2, 2)), *drain(runner)]
    done = [event for event in events if isinstance(event, StepDone)]
    assert [tokens_of(done, number) for number in (1, 2, 3)] == [text[:1] for text in trial.texts]


def test_a_sequence_opened_anew_with_another_adapter_takes_that_one(trial: Loaded) -> None:
    runner = make_runner(trial.model)
    for number, at in ((1, 2), (2, 0), (3, 1)):
        made = generate(runner, number, PROMPT, COUNT, 0, adapter=trial.choices[at])
        assert made == trial.texts[at]


def test_files_that_changed_since_are_not_loaded(trial: Loaded, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, trial.directory, seed=3)
    with pytest.raises(ModelError, match="has changed since the instance was started"):
        load_adapters({trial.digests[0]: folder}, trial.loaded.config, torch.float32)


def test_numbers_that_are_none_are_refused(trial: Loaded, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, trial.directory, seed=3)
    path = folder / "adapter_model.safetensors"
    tensors = safetensors.torch.load(path.read_bytes())
    name = next(each for each in tensors if each.endswith("lora_B.weight"))
    tensors[name][0, 0] = float("inf")
    safetensors.torch.save_file(tensors, path)
    digest = load_adapter(folder, trial.loaded.config).digest
    with pytest.raises(ModelError, match="no finite number"):
        load_adapters({digest: folder}, trial.loaded.config, torch.float32)
