"""Where launches are asynchronous, a step that holds prompts is started behind one that was not read yet: the same
tokens, one answer for each step, in order, and rows may leave it as ever.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.device.pacing import HostPacer
from dunlin.engine.execution.runner import EngineRunner
from dunlin.messages.engine import Close, Interrupt, Interrupted, Resume, StepDone
from dunlin.messages.types import SamplingParams, Verdict, i64
from tests.engine.build import load, make_checkpoint, nothing
from tests.engine.commands import PROMPT, make_open, make_step
from tests.engine.execution.running import OTHER, generate, make_runner, run
from tests.engine.execution.test_ahead import Layers, make_ahead

GREEDY = SamplingParams(temperature=0.0)
LONG = [(7 * at * at + 3 * at + 11) % 500 for at in range(40)]
TEXTS = {1: PROMPT, 2: OTHER, 3: LONG}
SLOTS = 100
"""From one text's first slot to the next one's."""
COUNT = 9


class Mark:
    """Done when the device says so, or once it was waited for."""

    def __init__(self, looks: Callable[[], bool]) -> None:
        self._looks = looks
        self._is_done = False

    @property
    def is_done(self) -> bool:
        self._is_done = self._is_done or self._looks()
        return self._is_done

    def wait(self) -> None:
        self._is_done = True


def every_third() -> Callable[[], bool]:
    """Whether it is the third look, the sixth, ..."""
    looks = count(1)
    return lambda: next(looks) % 3 == 0


class AsynchronousDevice(HostPacer):
    """Is done with what is before a mark, or with all that was launched, when a look says so."""

    def __init__(self, looks: Callable[[], bool]) -> None:
        self.looks = looks
        self.marks = 0

    def advance(self, most_s: float) -> bool:
        return self.looks()

    def mark(self) -> Mark:  # type: ignore[override]
        self.marks += 1
        return Mark(self.looks)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_checkpoint(tmp_path_factory.mktemp("model"), layers=3), deterministic=True)


@pytest.fixture(scope="module")
def wanted(loaded: LoadedModel) -> dict[int, list[int]]:
    """Each text's tokens, alone and step after step."""
    return {
        number: generate(make_runner(loaded), number, tokens, COUNT, number * SLOTS) for number, tokens in TEXTS.items()
    }


def open_texts(runner: EngineRunner, **options: Any) -> None:
    assert run(runner, *(make_open(each, tokens, **options) for each, tokens in TEXTS.items())) == []


def close_texts(runner: EngineRunner) -> None:
    run(runner, *(Close(each) for each in TEXTS))


def row(text: int, start: int, stop: int) -> tuple[int, int, int, int]:
    return text, start, stop, text * SLOTS + start


def test_a_step_is_answered_between_two_pieces_of_the_next(
    loaded: LoadedModel, wanted: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = due = 0
    device = AsynchronousDevice(lambda: 0 < due <= passed)
    layers, runner = Layers(monkeypatch), make_ahead(loaded, device)

    def safepoint() -> None:
        nonlocal passed
        passed += 1

    open_texts(runner)
    n = len(PROMPT)
    runner.receive(make_step(1, row(1, 0, n), row(3, 0, 16), sample=[1, 0]))
    runner.receive(make_step(2, row(1, n, n + 1), row(2, 0, len(OTHER))))
    assert runner.work(safepoint) == []
    assert (layers.begun, device.marks, len(runner.steps)) == (2, 1, 2)
    assert runner.steps.is_unanswered(1)
    assert runner.steps.is_unanswered(2)
    due = passed + 3
    (first,) = runner.work(safepoint)
    assert (first.step, list(first.token)) == (1, wanted[1][:1])
    assert passed == due, "in the middle of the second step"
    assert (runner.steps.is_unanswered(1), len(runner.steps)) == (False, 1)
    (second,) = run(runner)
    assert (second.step, list(second.token)) == (2, [wanted[1][1], wanted[2][0]])
    # A second passes from one look at it to the next: two calls for the first step, one for the rest of the second.
    assert (first.compute_s, second.compute_s) == (2.0, 1.0)
    close_texts(runner)


def test_a_chunk_follows_one_that_chose_nothing(loaded: LoadedModel, wanted: dict[int, list[int]]) -> None:
    device = AsynchronousDevice(every_third())
    runner = make_ahead(loaded, device)
    open_texts(runner)
    done = run(
        runner, make_step(1, row(3, 0, 16), sample=[0]), make_step(2, row(3, 16, 32), sample=[0]),
        make_step(3, row(3, 32, 40)),
    )  # fmt: skip
    assert [each.step for each in done] == [1, 2, 3]
    assert [list(each.token) for each in done] == [[], [], wanted[3][:1]]
    assert device.marks == 2
    close_texts(runner)


def test_a_row_that_computes_more_than_the_unread_token_waits(
    loaded: LoadedModel, wanted: dict[int, list[int]]
) -> None:
    device = AsynchronousDevice(every_third())
    runner = make_ahead(loaded, device)
    open_texts(runner)
    n = len(PROMPT)
    done = run(runner, make_step(1, row(1, 0, n)), make_step(2, row(1, n - 1, n + 1), row(2, 0, len(OTHER))))
    assert [list(each.token) for each in done] == [wanted[1][:1], [wanted[1][1], wanted[2][0]]]
    assert device.marks == 0
    close_texts(runner)


def test_a_text_that_ends_is_dropped_from_the_step_behind(loaded: LoadedModel, wanted: dict[int, list[int]]) -> None:
    runner = make_ahead(loaded, AsynchronousDevice(every_third()))
    open_texts(runner, stop_ids=[wanted[1][0]])
    n = len(PROMPT)
    first, second = run(
        runner, make_step(1, row(1, 0, n)), make_step(2, row(1, n, n + 1), row(2, 0, len(OTHER)))
    )  # fmt: skip
    assert list(first.token) == wanted[1][:1]
    assert (list(second.sequence), list(second.dropped)) == ([2], [1])
    close_texts(runner)


def test_an_interrupt_comes_after_the_step_before(loaded: LoadedModel, wanted: dict[int, list[int]]) -> None:
    """Its rows are read, whatever the device is at; those of the running step leave where they stand, and come back."""
    is_done: list[bool] = []
    runner = make_ahead(loaded, AsynchronousDevice(lambda: bool(is_done)))
    open_texts(runner)
    n = len(PROMPT)
    runner.receive(make_step(1, row(1, 0, n)))
    runner.receive(make_step(2, row(1, n, n + 1), row(3, 0, 40)))
    assert runner.work(nothing) == []
    assert runner.work(lambda: True) == []
    assert runner.receive(Interrupt(Verdict.SUSPEND, ticket=5, up_to_step=2)) == []
    (first,) = runner.work(nothing)
    assert (first.step, list(first.token)) == (1, wanted[1][:1])
    left, second = runner.work(nothing)
    assert (left.ticket, list(left.sequence), list(left.parked)) == (5, [1, 3], [1, 1])
    assert (second.step, sorted(second.left)) == (2, [1, 3])
    is_done.append(True)
    runner.receive(Resume(3, i64([1, 3])))
    (third,) = run(runner)
    assert dict(zip(third.sequence, third.token, strict=True)) == {1: wanted[1][1], 3: wanted[3][0]}
    close_texts(runner)


@dataclass
class Text:
    """What the client knows of one: tokens known and pending, and the end of the last row that it asked for."""

    number: int
    prompt: int
    tokens: list[int] = field(default_factory=list)
    pending: int = 0
    issued: int = 0

    @property
    def length(self) -> int:
        return self.prompt + len(self.tokens) + self.pending


class RandomClient:
    """Composes steps as an instance does, two at a time, takes rows out of them at random and lets them go on."""

    def __init__(self, runner: EngineRunner, seed: int) -> None:
        self._runner = runner
        self._random = random.Random(seed)
        self.texts = {number: Text(number, len(tokens)) for number, tokens in TEXTS.items()}
        self.ended: set[int] = set()
        self.answered: list[int] = []
        self._steps: dict[int, dict[int, tuple[int, bool]]] = {}
        self._parked: dict[int, tuple[int, bool]] = {}
        self._last = 0

    def play(self) -> None:
        """Until every text has its tokens."""
        while self._runner.busy or self._parked or any(self._wants(each) for each in self.texts.values()):
            if self._parked and self._random.random() < 0.3:
                self._resume()
            while len(self._steps) < 2 and self._compose():
                pass
            if self._steps and self._random.random() < 0.1:
                self._interrupt()
            self._take(self._runner.work(lambda: self._random.random() < 0.2))

    def _wants(self, text: Text) -> bool:
        return text.number not in self.ended and len(text.tokens) + text.pending < COUNT

    def _compose(self) -> bool:
        able = [
            each for each in self.texts.values()
            if self._wants(each) and each.number not in self._parked and self._random.random() < 0.8
        ]  # fmt: skip
        rows, samples = [], []
        for text in able:
            left = text.length - text.issued
            tokens = left if left == 1 else self._random.randint(1, min(left, 16))
            rows.append(row(text.number, text.issued, text.issued + tokens))
            samples.append(int(tokens == left))
        if not rows:
            return False
        self._last += 1
        self._steps[self._last] = {}
        for (number, start, stop, _), sample in zip(rows, samples, strict=True):
            text = self.texts[number]
            text.issued, text.pending = stop, text.pending + sample
            self._steps[self._last][number] = start, bool(sample)
        preemptible = self._random.random() < 0.3
        assert self._runner.receive(make_step(self._last, *rows, sample=samples, preemptible=preemptible)) == []
        return True

    def _resume(self) -> None:
        """One at a time, for they may stand at different places."""
        number = self._random.choice(list(self._parked))
        self._last += 1
        self._steps[self._last] = {number: self._parked.pop(number)}
        assert self._runner.receive(Resume(self._last, i64([number]))) == []

    def _interrupt(self) -> None:
        named = [number for number in self.texts if self._random.random() < 0.6]
        verdict = self._random.choice([Verdict.SUSPEND, Verdict.DISCARD])
        events = self._runner.receive(Interrupt(verdict, i64(named or [1]), ticket=1, up_to_step=self._last))
        while not any(isinstance(event, Interrupted) for event in events):
            events += self._runner.work(nothing)
        self._take(events)

    def _take(self, events: list[Any]) -> None:
        left = {
            (step, number): parked
            for event in events if isinstance(event, Interrupted)
            for step, number, parked in zip(event.step, event.sequence, event.parked, strict=True)
        }  # fmt: skip
        for (step, number), parked in sorted(left.items(), reverse=True):
            start, sample = self._steps[step].pop(number)
            if parked:
                self._parked[number] = start, sample
            else:
                self.texts[number].issued = start
                self.texts[number].pending -= sample
        for event in events:
            if isinstance(event, StepDone):
                self._complete(event)

    def _complete(self, done: StepDone) -> None:
        self.answered.append(done.step)
        for number, (_, sample) in self._steps.pop(done.step).items():
            self.texts[number].pending -= sample
        for number, token, finish in zip(done.sequence, done.token, done.finish, strict=True):
            self.texts[number].tokens.append(token)
            if finish:
                self.ended.add(number)


@pytest.mark.parametrize("seed", range(24))
def test_the_tokens_do_not_depend_on_what_is_ahead(
    loaded: LoadedModel, wanted: dict[int, list[int]], seed: int
) -> None:
    """Whatever steps hold, whenever the device is done, whichever rows leave. Every third client's texts may stop."""
    looks = random.Random(1000 + seed)
    device = AsynchronousDevice(lambda: looks.random() < 0.2)
    runner = make_ahead(loaded, device)
    stop = wanted[1][4] if seed % 3 == 0 else -1
    open_texts(runner, stop_ids=[stop] if stop >= 0 else [], max_tokens=COUNT)
    client = RandomClient(runner, seed)
    client.play()
    for number, text in client.texts.items():
        until = wanted[number].index(stop) + 1 if stop in wanted[number] else COUNT
        assert text.tokens == wanted[number][:until]
    assert sorted(client.answered) == list(range(1, max(client.answered) + 1))
    assert device.marks > 0
    close_texts(runner)
