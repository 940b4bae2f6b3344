"""Steps as they follow each other in service, to be measured: prompts that arrive among decodes, pauses. Pure.

The same step again and again finds its caches warm; between others it does not, and takes up to a third longer. So a
profile is fitted to steps in an order such as this one.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from dunlin.cost.models import BatchCounts

TOKENS_MAX = 512
"""Tokens of one step; a longer prompt goes in chunks."""
_PHASE = 50


@dataclass(frozen=True, slots=True)
class TracedSequence:
    """One sequence: its prompt, and how many tokens follow."""

    number: int
    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class TracedRow:
    """One row: the tokens `[start, stop)` of a text. Samples unless it is a chunk before the prompt's last."""

    sequence: TracedSequence
    start: int
    stop: int

    @property
    def is_decode(self) -> bool:
        """Whether it computes a token that was sampled."""
        return self.start >= self.sequence.prompt

    @property
    def samples(self) -> bool:
        """Whether the row yields a token."""
        return self.stop >= self.sequence.prompt

    @property
    def is_last(self) -> bool:
        """Whether the text ends with this row."""
        return self.stop == self.sequence.prompt + self.sequence.answer


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A step's rows; the engine did nothing for `pause_s` before (0: this step was queued)."""

    rows: tuple[TracedRow, ...]
    pause_s: float = 0.0

    def batch(self) -> BatchCounts:
        """The step as counts."""
        batch = BatchCounts()
        for part in self.rows:
            if part.is_decode:
                batch.add_decode(part.stop)
            else:
                batch.add_prefill(part.stop - part.start, part.start)
        return batch


@dataclass(slots=True)
class _Serving:
    """The texts under way, the progress of each, and the rows of the next step."""

    chance: random.Random
    positions: int
    done: dict[TracedSequence, int] = field(default_factory=dict)
    numbers: int = 0

    def arrive(self, count: int) -> None:
        for _ in range(count):
            self.numbers += 1
            prompt = min(int(self.chance.lognormvariate(4.4, 0.9)) + 1, self.positions // 2)
            mean = self.chance.choice((3, 3, 40, 120))
            answer = min(int(self.chance.expovariate(1 / mean)) + 1, self.positions - prompt - 1)
            self.done[TracedSequence(self.numbers, prompt, answer)] = 0

    def keep(self, count: int) -> None:
        """Forget all other texts."""
        self.done = dict(list(self.done.items())[:count])

    def step(self) -> tuple[TracedRow, ...]:
        """Compose a step: decode rows first, then chunks of prompts as far as there is room."""
        room, parts = TOKENS_MAX, []
        for text, held in sorted(self.done.items(), key=lambda item: item[1] < item[0].prompt):
            stop = held + 1 if held >= text.prompt else min(text.prompt, held + room)
            if stop > held and room > 0:
                parts.append(TracedRow(text, held, stop))
                room -= stop - held
        for part in parts:
            self.done[part.sequence] = part.stop
            if part.is_last:
                del self.done[part.sequence]
        return tuple(parts)


def service_steps(count: int, positions: int, rows_max: int = 96, seed: int = 0) -> Iterator[TracedStep]:
    """`count` steps: every so often another number of rows is wanted, small ones more often, and reached at once or
    little by little; where nothing is left to do there is a pause. Prompts of 81 tokens in the median, answers of 42
    in the mean.
    """
    chance = random.Random(seed)
    serving = _Serving(chance, positions)
    wanted = 1
    for number in range(count):
        if number % _PHASE == 0:
            wanted = int(rows_max ** chance.random())
            serving.keep(wanted)
            if chance.random() < 0.5:
                serving.arrive(wanted - len(serving.done))
        pause_s = 0.0
        if not serving.done:
            pause_s = chance.uniform(0.001, 0.03) if number else 0.0
            serving.arrive(chance.choice((1, 1, 2)))
        elif len(serving.done) < wanted and chance.random() < max(0.05, 0.1 * (wanted - len(serving.done)) ** 0.5):
            serving.arrive(chance.choice((1, 1, 1, 2, 3)))
        yield TracedStep(serving.step(), pause_s)
