"""Where a device computes beside the host, a decode step is launched before the tokens of the one before are read: the
same tokens, and nothing else is different.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.iteration import Iteration
from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.decoder.numerics import Choose
from dunlin.engine.decoder.sampling.device_sampling import DeviceChoices, choose_on_device
from dunlin.engine.decoder.sampling.sampling import SamplingInput
from dunlin.engine.device.pacing import HostPacer, Pacer
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.messages.engine import Close, Interrupt, Interrupted, StepDone
from dunlin.messages.types import FinishReason, SamplingParams, Verdict
from tests.engine.build import SteppingClock, load, make_checkpoint, nothing
from tests.engine.commands import PROMPT, make_open, make_step
from tests.engine.execution.running import OTHER, make_runner, run

N, M = len(PROMPT), len(OTHER)
PROMPTS = make_step(1, (1, 0, N, 0), (2, 0, M, 100))
DRAWN = SamplingParams(temperature=0.9, seed=5, repetition_penalty=1.2, frequency_penalty=0.1)


def make_ahead(loaded: LoadedModel, pacer: Pacer | None = None, choose: Choose = choose_on_device) -> EngineRunner:
    """What was chosen is found by what is launched next, as on a device."""
    decoder = loaded.decoder
    chosen = Decoder(decoder.config, loaded.weights, decoder.kv, replace(decoder.numerics, choose=choose))
    return EngineRunner(chosen, loaded.slots, SteppingClock(), RunnerLimits(), pacer=pacer or HostPacer())


def decode(step: int, *sequences: int, **overrides: Any) -> Any:
    """The step after `step - 1` tokens of each text."""
    lengths, slots = {1: N, 2: M}, {1: 0, 2: 100}
    known = {each: lengths[each] + step - 1 for each in sequences}
    return make_step(
        step, *((each, known[each] - 1, known[each], slots[each] + known[each] - 1) for each in sequences), **overrides
    )


def open_both(runner: EngineRunner, **options: Any) -> None:
    assert run(runner, make_open(1, PROMPT, **options), make_open(2, OTHER, **options)) == []


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_checkpoint(tmp_path_factory.mktemp("model"), layers=3), deterministic=True)


class Layers:
    """Which iterations have begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        made = Iteration.__init__

        def init(iteration: Iteration, *arguments: Any, **named: Any) -> None:
            self.begun += 1
            made(iteration, *arguments, **named)

        monkeypatch.setattr(Iteration, "__init__", init)


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), DRAWN])
def test_the_tokens_are_those_of_step_after_step(loaded: LoadedModel, sampling: SamplingParams) -> None:
    steps = [PROMPTS, *(decode(step, 1, 2) for step in range(2, 9))]
    found = []
    for runner in (make_runner(loaded), make_ahead(loaded)):
        open_both(runner, sampling=sampling)
        done = run(runner, *steps)
        assert [each.step for each in done] == [step.step for step in steps]
        found.append([(list(each.sequence), list(each.token), list(each.finish)) for each in done])
        run(runner, Close(1), Close(2))
    assert found[0] == found[1]


def test_the_next_step_is_launched_before_the_tokens_are_read(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for runner, begun in ((make_runner(loaded), [1, 2, 3]), (make_ahead(loaded), [2, 3, 3])):
        layers = Layers(monkeypatch)
        open_both(runner)
        for step in (PROMPTS, decode(2, 1, 2), decode(3, 2, 1)):
            runner.receive(step)
        seen = []
        for number in (1, 2, 3):
            (done,) = runner.work(nothing)
            assert done.step == number
            seen.append(layers.begun)
        assert seen == begun
        run(runner, Close(1), Close(2))


def test_a_text_that_ended_is_dropped_from_the_step_after(loaded: LoadedModel) -> None:
    first = make_runner(loaded)
    open_both(first)
    token = run(first, PROMPTS)[0].token[0]
    run(first, Close(1), Close(2))
    for runner in (make_runner(loaded), make_ahead(loaded)):
        open_both(runner, stop_ids=[token])
        one, two, three = run(runner, PROMPTS, decode(2, 1, 2), decode(3, 1, 2))
        assert FinishReason(one.finish[0]) is FinishReason.STOP
        assert [list(each.dropped) for each in (one, two, three)] == [[], [1], [1]]
        assert [list(each.sequence) for each in (two, three)] == [[2], [2]]
        run(runner, Close(1), Close(2))


def test_what_is_no_plain_decode_step_waits(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [
        decode(2, 1, 2, preemptible=True),
        decode(2, 1, 2, sample=[1, 0]),
        make_step(2, (3, 0, 4, 200)),
    ]
    for other in others:
        layers, runner = Layers(monkeypatch), make_ahead(loaded)
        open_both(runner)
        runner.receive(make_open(3, PROMPT[:4]))
        for step in (PROMPTS, other):
            runner.receive(step)
        (done,) = runner.work(nothing)
        assert (done.step, layers.begun) == (1, 1)
        assert [each.step for each in run(runner)] == [2]
        run(runner, *(Close(each) for each in (1, 2, 3)))


def test_a_step_that_cannot_be_run_is_answered_in_its_turn(loaded: LoadedModel) -> None:
    runner = make_ahead(loaded)
    open_both(runner)
    wrong = make_step(2, (1, N, N + 1, 400), (2, M, M + 1, 100 + M))  # leaves no gap, and no text has that many
    too_far = make_step(3, (1, N + 1, N + 2, N + 1))
    answers = run(runner, PROMPTS, too_far, wrong)
    assert [type(each).__name__ for each in answers] == ["StepDone", "Unsupported", "StepDone"]
    assert [each.step for each in answers] == [1, 3, 2]
    run(runner, Close(1), Close(2))


def test_an_interrupt_waits_for_what_is_launched(loaded: LoadedModel) -> None:
    runner = make_ahead(loaded)
    open_both(runner)
    for step in (PROMPTS, decode(2, 1, 2), decode(3, 1, 2)):
        runner.receive(step)
    (first,) = runner.work(nothing)
    assert runner.receive(Interrupt(Verdict.DISCARD, ticket=9, up_to_step=3)) == []
    second, third, answer = run(runner)
    assert (first.step, second.step) == (1, 2)
    assert isinstance(answer, StepDone) != isinstance(third, StepDone)
    gone = answer if isinstance(answer, Interrupted) else third
    assert isinstance(gone, Interrupted)
    assert list(gone.sequence) == [1, 2]
    assert list(second.sequence) == [1, 2]
    run(runner, Close(1), Close(2))


def test_a_text_that_is_closed_meanwhile_is_forgotten(loaded: LoadedModel) -> None:
    runner = make_ahead(loaded)
    open_both(runner)
    for step in (PROMPTS, decode(2, 1, 2)):
        runner.receive(step)
    (first,) = runner.work(nothing)
    runner.receive(Close(1))
    (second,) = run(runner, decode(3, 2))[:1]
    assert (first.step, second.step) == (1, 2)
    assert 2 in second.sequence
    run(runner, Close(2))


def test_a_step_whose_rows_are_gone_waits_for_the_tokens(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens on the device are of all rows: they do not fit those that are left."""
    layers, runner = Layers(monkeypatch), make_ahead(loaded)
    open_both(runner)
    for step in (PROMPTS, decode(2, 1, 2)):
        runner.receive(step)
    runner.receive(Close(1))
    one, two = run(runner)
    assert (one.step, two.step, layers.begun) == (1, 2, 2)
    assert [list(each.dropped) for each in (one, two)] == [[1], [1]]
    assert list(two.sequence) == [2]
    run(runner, Close(2))


class SlowDevice(HostPacer):
    """Is done with what was launched after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = self.left = looks

    def advance(self, most_s: float) -> bool:
        self.left -= 1
        return self.left < 0


def test_while_a_step_is_under_way_the_next_one_may_come(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what chooses the step's tokens is launched before."""
    device, chosen = SlowDevice(3), []

    def choose(logits: Tensor, draws: Sequence[SamplingInput]) -> DeviceChoices:
        chosen.append(len(draws))
        return choose_on_device(logits, draws)

    layers, runner = Layers(monkeypatch), make_ahead(loaded, device, choose)
    open_both(runner)
    assert [each.step for each in run(runner, PROMPTS)] == [1]
    device.left = 3
    runner.receive(decode(2, 1, 2))
    assert runner.work(nothing) == []
    assert runner.work(nothing) == []
    assert (device.left, layers.begun, chosen) == (1, 2, [2, 2])
    runner.receive(decode(3, 1, 2))
    (second,) = runner.work(nothing)
    assert (second.step, layers.begun, device.left) == (2, 3, 1)
    assert runner.work(nothing) == []
    (third,) = runner.work(nothing)
    assert (third.step, device.left, chosen) == (3, -1, [2, 2, 2])
    run(runner, Close(1), Close(2))


def test_who_waits_for_a_step_leaves_it_for_an_interrupt(loaded: LoadedModel) -> None:
    device = SlowDevice(0)
    runner = make_ahead(loaded, device)
    open_both(runner)
    run(runner, PROMPTS)
    device.left = 100
    runner.receive(decode(2, 1, 2))
    assert runner.work(nothing) == []
    assert runner.receive(Interrupt(Verdict.DISCARD, ticket=9, up_to_step=2)) == []
    second, answer = runner.work(nothing)
    assert (second.step, list(second.sequence)) == (2, [1, 2])
    assert (answer.ticket, list(answer.sequence)) == (9, [])
    run(runner, Close(1), Close(2))
