"""One engine without its process, told what to compute: texts in slots of their own, steps, and their times."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.device.base import EngineDevice
from dunlin.engine.execution.engine_layers import LayerMemory
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.arena_slots import slab_of
from dunlin.messages.engine import Close, Open, Step, StepDone
from dunlin.messages.types import SamplingParams, i8, i32, i64

GREEDY = SamplingParams(temperature=0.0)


class EngineDriver:
    """Owns a runner over `loaded`; texts are numbered from 1, and lie in slots one after the other.

    `with_segments`: decode steps are recorded, where the device does that.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        device: EngineDevice,
        limits: RunnerLimits | None = None,
        layers: LayerMemory | None = None,
        with_segments: bool = True,
    ) -> None:
        begin = device.begin_segments if with_segments else None
        self.runner = EngineRunner(
            loaded.decoder,
            loaded.slots,
            time.perf_counter,
            limits,
            memory=OwnMemory(slab_of(loaded.arena, loaded.decoder.kv, device.kv)),
            layers=layers,
            work_clock=device.work_clock,
            pacer=device.pacer,
            begin_segments=None if begin is None else begin(loaded.decoder, None),
            rows_may_leave_segments=device.rows_may_leave_segments,
        )
        self._slots = loaded.slots
        self._next_slot = 0
        self._numbers = 0
        self.texts: dict[int, tuple[list[int], int]] = {}
        """(tokens, first slot) by number."""

    def open(
        self, tokens: Sequence[int], room: int, *, is_written: bool = False, sampling: SamplingParams = GREEDY
    ) -> int:
        """A text with slots for `room` more tokens. `is_written`: whatever lies in its slots is its KV but the last
        token's.
        """
        number, slot = self.number(), self._next_slot
        if slot + len(tokens) + room > self._slots:
            raise ValueError(f"{len(tokens)} + {room} tokens from slot {slot} of {self._slots}: give more KV")
        self._next_slot += len(tokens) + room
        held = len(tokens) - 1 if is_written else 0
        extents = (i64([slot]), i64([held])) if held else (i64(), i64())
        self.tell(Open(number, i32(tokens), len(tokens), room, sampling, i32(), *extents))
        self.texts[number] = list(tokens), slot
        return number

    def step(self, *rows: tuple[int, int, int], sample: Sequence[int] | None = None) -> Step:
        """Rows are (text, start, stop)."""
        texts, starts, stops = (i64(column) for column in zip(*rows, strict=True))
        slots = [self.texts[text][1] + start for text, start, _ in rows]
        wanted = i8(sample if sample is not None else [1] * len(rows))
        lengths = i64([stop - start for _, start, stop in rows])
        return Step(self.number(), texts, starts, stops, wanted, i32(range(len(rows))), i64(slots), lengths)

    def run(self, step: Step, safepoint: Callable[[], object] = lambda: None) -> StepDone:
        """Compute a step to its end; its tokens are taken in."""
        self.tell(step)
        events: list[Any] = []
        while not any(isinstance(event, StepDone) for event in events):
            events += self.runner.work(safepoint)
        done = next(event for event in events if isinstance(event, StepDone))
        self._take(done)
        return done

    def decode(self, texts: Sequence[int]) -> StepDone:
        """The next token of each text."""
        lengths = [len(self.texts[text][0]) for text in texts]
        return self.run(self.step(*((text, count - 1, count) for text, count in zip(texts, lengths, strict=True))))

    def decode_steps(self, texts: Sequence[int], count: int, ahead: int = 2) -> None:
        """So many tokens of each text, with up to `ahead` steps queued at a time, as an instance does."""
        self.mixed_steps(texts, (), count, ahead)

    def mixed_steps(
        self, texts: Sequence[int], prompts: Sequence[tuple[int, int, int]], count: int, ahead: int = 2
    ) -> None:
        """Likewise, beside the same rows (text, start, stop) in each step, none of which chooses a token."""
        known = {text: len(self.texts[text][0]) for text in texts}
        chosen = [1] * len(texts) + [0] * len(prompts)
        told = answered = 0
        while answered < count:
            while told < min(answered + ahead, count):
                rows = [(text, known[text] + told - 1, known[text] + told) for text in texts]
                self.tell(self.step(*rows, *prompts, sample=chosen))
                told += 1
            for done in self.runner.work(lambda: None):
                assert isinstance(done, StepDone), done
                answered += 1
                self._take(done)

    def close(self) -> None:
        """Forget all texts; their slots are free."""
        for text in self.texts:
            self.tell(Close(text))
        self.texts, self._next_slot = {}, 0

    def _take(self, done: StepDone) -> None:
        for text, token in zip(done.sequence, done.token, strict=True):
            self.texts[text][0].append(token)

    def tell(self, message: Any) -> None:
        """A command that has no answer yet."""
        answers = self.runner.receive(message)
        if answers:
            raise RuntimeError(f"{type(message).__name__}: {answers}")

    def number(self) -> int:
        self._numbers += 1
        return self._numbers
