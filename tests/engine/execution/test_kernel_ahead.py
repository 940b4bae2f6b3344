"""Decode steps on the CPU that are launched before the tokens of the one before are read: whatever the rows ask for,
and whatever comes between, every text is that of step after step.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dunlin.engine.attention.native.library import KernelUnavailable
from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.decoder.native.decode_steps import load_decode_kernel
from dunlin.engine.device.pacing import HOST_PACER, Pacer, choose_host_pacer
from dunlin.engine.execution.runner import EngineRunner
from dunlin.messages.engine import Close, Interrupt, StepDone
from dunlin.messages.types import SamplingParams, Verdict, i64
from tests.engine.build import SteppingClock, load, make_checkpoint, nothing
from tests.engine.commands import make_open, make_step

SLOTS = 60
"""Of each sequence."""
ASKED = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(temperature=0.0, frequency_penalty=0.5),
    SamplingParams(temperature=0.8, seed=3),
)


class Looks:
    """The pacer of this processor; counts the steps that were under way when it was asked."""

    def __init__(self, pacer: Pacer) -> None:
        self.pace, self.settle, self.mark = pacer.pace, pacer.settle, pacer.mark
        self.under_way = 0
        self._pacer = pacer

    def advance(self, most_s: float) -> bool:
        done = self._pacer.advance(most_s)
        self.under_way += not done
        return done


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    found = load(make_checkpoint(folder, layers=3, head_dim=64, hidden=96, dtype="bfloat16"), dtype="bfloat16")
    try:
        load_decode_kernel(found.decoder)
    except KernelUnavailable as error:
        pytest.skip(str(error))
    return found


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def make_runner(loaded: LoadedModel, pacer: Pacer) -> EngineRunner:
    begin = load_decode_kernel(loaded.decoder).begin
    return EngineRunner(loaded.decoder, loaded.slots, SteppingClock(), pacer=pacer, begin_segments=begin)


class Course:
    """A random course of commands, the same for every runner: texts come and go, steps are queued one or two ahead."""

    def __init__(self, runner: EngineRunner, seed: int) -> None:
        self.random = random.Random(seed)
        self.runner = runner
        self.known: dict[int, int] = {}
        self.answers: list[Any] = []
        self._asked = self.random.choice([ASKED, ASKED[:2]])
        self._step = self._sequence = 0

    def run(self) -> list[Any]:
        for _ in range(40):
            self.random.choice([self._open, self._decode, self._decode, self._decode, self._decode, self._end])()
            for _ in range(self.random.choice([0, 0, 1, 3])):
                self._note(self.runner.work(nothing))
        while self.runner.busy:
            self._note(self.runner.work(nothing))
        for sequence in self.known:
            self.runner.receive(Close(sequence))
        return self.answers

    def _note(self, events: list[Any]) -> None:
        for event in events:
            assert isinstance(event, StepDone), event
            logprobs = [round(each, 3) for each in event.logprob]
            told = (event.sequence, event.token, event.finish, event.dropped, event.left, event.top_token)
            self.answers.append((event.step, *map(list, told), logprobs))

    def _send(self, rows: list[tuple[int, int, int, int]]) -> None:
        self._step += 1
        assert self.runner.receive(make_step(self._step, *rows)) == []

    def _open(self) -> None:
        """A text, with a step for its prompt."""
        self._drain(0)
        self._sequence += 1
        prompt = [self.random.randrange(3, 90) for _ in range(self.random.randrange(1, 9))]
        ends = [self.random.randrange(3, 90) for _ in range(5)]
        opened = make_open(
            self._sequence, prompt, max_tokens=self.random.randrange(3, 30), sampling=self.random.choice(self._asked),
            stop_ids=ends,
        )  # fmt: skip
        assert self.runner.receive(opened) == []
        self._send([(self._sequence, 0, len(prompt), self._sequence % 8 * SLOTS)])
        self.known[self._sequence] = len(prompt) + 1
        self._drain(0)
        if len(self.known) > 6:
            self._end()

    def _decode(self) -> None:
        """The next token of each text, whether it has ended or not."""
        self._drain(1)
        rows = [(each, known - 1, known, each % 8 * SLOTS + known - 1) for each, known in self.known.items()]
        if rows and max(known for _, _, known, _ in rows) < SLOTS:
            self._send(rows)
            self.known = {each: known + 1 for each, known in self.known.items()}

    def _end(self) -> None:
        """A text is closed, with a step under way or not."""
        if self.known:
            gone = self.random.choice(list(self.known))
            del self.known[gone]
            if self.random.random() < 0.5:
                self._drain(0)
            self.runner.receive(Close(gone))

    def _drain(self, steps: int) -> None:
        while len(self.runner.steps) > steps:
            self._note(self.runner.work(nothing))


def texts(answers: list[Any]) -> dict[int, list[int]]:
    """The tokens of each sequence."""
    found: dict[int, list[int]] = {}
    for _, sequences, tokens, *_ in answers:
        for sequence, token in zip(sequences, tokens, strict=True):
            found.setdefault(sequence, []).append(token)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_texts_are_those_of_step_after_step(loaded: LoadedModel, seed: int) -> None:
    """A step that was launched before a text is closed still has its row: such a text has a token more."""
    pacer = choose_host_pacer()
    looks = Looks(pacer)
    plain = texts(Course(make_runner(loaded, HOST_PACER), seed).run())
    ahead = texts(Course(make_runner(loaded, looks), seed).run())
    assert plain.keys() == ahead.keys()
    for sequence, tokens in plain.items():
        shared = min(len(tokens), len(ahead[sequence]))
        assert ahead[sequence][:shared] == tokens[:shared]
        assert abs(len(ahead[sequence]) - len(tokens)) <= 2


def test_steps_are_under_way_while_others_are_made(loaded: LoadedModel) -> None:
    """With one thread a step is computed by who waits for it: not before the next one is launched."""
    pacer = choose_host_pacer()
    torch.set_num_threads(1)
    looks, found = Looks(pacer), []
    for runner in (make_runner(loaded, HOST_PACER), make_runner(loaded, looks)):
        runner.receive(make_open(1, [5, 6, 7], max_tokens=20))
        runner.receive(make_step(1, (1, 0, 3, 0)))
        tokens = list(runner.work(nothing)[0].token)
        for step in range(2, 10):
            runner.receive(make_step(step, (1, step + 1, step + 2, step + 1)))
            tokens += [token for event in runner.work(nothing) for token in event.token]
        while runner.busy:
            tokens += [token for event in runner.work(nothing) for token in event.token]
        runner.receive(Close(1))
        found.append(tokens)
    assert found[0] == found[1]
    assert len(found[0]) == 9
    assert looks.under_way >= 1


def test_an_interrupt_is_answered_when_the_step_under_way_is_done(loaded: LoadedModel) -> None:
    pacer = choose_host_pacer()
    runner = make_runner(loaded, pacer)
    torch.set_num_threads(1)
    runner.receive(make_open(1, [5, 6, 7], max_tokens=20))
    runner.receive(make_step(1, (1, 0, 3, 0)))
    assert len(runner.work(nothing)) == 1
    runner.receive(make_step(2, (1, 3, 4, 3)))
    assert runner.work(nothing) == []
    assert not pacer.advance(0.0)
    assert runner.receive(Interrupt(Verdict.DISCARD, i64([1]), ticket=9, up_to_step=2)) == []
    done, answer = runner.work(nothing)
    assert (done.step, list(done.sequence), answer.ticket, list(answer.sequence)) == (2, [1], 9, [])
    assert pacer.advance(0.0)
    runner.receive(Close(1))
