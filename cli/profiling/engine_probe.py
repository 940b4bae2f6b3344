"""A live engine in a child process, asked for single steps and moves as its instance asks: two steps outstanding.

Measures; decides nothing about what to measure (`trial_plan`) or to fit (`profiler`). One thread.
"""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from cli.profiling.engine_process import EngineProcess, ProbeError, ProbeHostTier, ProbeOptions
from cli.profiling.service_trace import TracedSequence, TracedStep
from cli.profiling.trials import DISCARDED, InterruptAnswer, ProbedStep, StepTrial, TrialRow
from dunlin.effects import Message
from dunlin.messages.engine import Close, Interrupt, Interrupted, MapHost, Open, Step, StepDone, Transfer, TransferDone
from dunlin.messages.types import (
    HostRegion,
    Region,
    SamplingParams,
    TransferKind,
    TransferStatus,
    Verdict,
    i8,
    i32,
    i64,
)

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0, seed=1)
_LOOK_S = 0.0002


@dataclass(slots=True)
class _Opened:
    """A text at the engine: its number there, and the first of its slots."""

    sequence: int
    slot: int


class EngineProbe:
    """Steps and moves of one engine, which ends with this. Use as a context manager; raises ProbeError if the engine
    does not start.
    """

    def __init__(self, choice: ProbeOptions, seed: int = 0) -> None:
        self._engine = EngineProcess(choice)
        self._random = random.Random(seed)
        self._count = 0
        self.is_on_cpu = self._engine.is_on_cpu
        self.ready = self._engine.ready
        self.load_s = self._engine.load_s

    def __enter__(self) -> "EngineProbe":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._engine.close()

    def measure_step(self, trial: StepTrial) -> list[ProbedStep]:
        """The trial's steps, in order. Raises ProbeError."""
        steps = list(self._steps(trial))
        turns: list[ProbedStep] = []
        before_s = 0.0
        for number, (done, at_s) in enumerate(self._run(steps)):
            if len(done.sequence) != len(trial.rows):
                raise ProbeError(f"a step of {len(trial.rows)} rows gave {len(done.sequence)} tokens")
            if number >= DISCARDED:
                turns.append(ProbedStep(done.compute_s, max(0.0, at_s - before_s - done.compute_s)))
            before_s = at_s
        return turns

    def run_trace(self, beats: Sequence[TracedStep]) -> list[ProbedStep]:
        """Run the steps in order, each sent while the one before it runs, but after a pause. Raises ProbeError."""
        opened: dict[TracedSequence, _Opened] = {}
        turns: list[ProbedStep] = []
        sent, before_s = 0, self._engine.now_s()
        for number, beat in enumerate(beats):
            while sent < len(beats) and (sent == number or (sent == number + 1 and not beats[sent].pause_s)):
                if beats[sent].pause_s:
                    time.sleep(beats[sent].pause_s)
                    before_s = self._engine.now_s()
                self._engine.send(*self._beat(beats[sent], opened))
                sent += 1
            done: StepDone = self._engine.receive(StepDone)
            ended_s = self._engine.now_s()
            turns.append(ProbedStep(done.compute_s, max(0.0, ended_s - before_s - done.compute_s)))
            before_s = ended_s
            over = [part.sequence for part in beat.rows if part.is_last]
            self._engine.send(*[Close(opened.pop(text).sequence) for text in over])
        self._engine.send(*[Close(each.sequence) for each in opened.values()])
        return turns

    def _beat(self, beat: TracedStep, opened: dict[TracedSequence, _Opened]) -> list[Message]:
        """The step, and before it the texts that it is the first to name."""
        messages: list[Message] = []
        for part in beat.rows:
            if part.sequence not in opened:
                row = TrialRow(0, part.sequence.prompt, decode=False)
                sequence, message, slot = self._open(row, part.sequence.answer)
                opened[part.sequence] = _Opened(sequence, slot)
                messages.append(message)
        self._count += 1
        there = [opened[part.sequence] for part in beat.rows]
        step = Step(
            step=self._count,
            sequence=i64([each.sequence for each in there]),
            start=i64([part.start for part in beat.rows]),
            stop=i64([part.stop for part in beat.rows]),
            sample=i8([part.samples for part in beat.rows]),
            extent_row=i32(range(len(there))),
            extent_start=i64([each.slot + part.start for each, part in zip(there, beat.rows, strict=True)]),
            extent_length=i64([part.stop - part.start for part in beat.rows]),
        )
        return [*messages, step]

    def move_times(self, tokens: int, repeats: int) -> dict[TransferKind, list[float]]:
        """The engine's seconds in each copy of a sequence of so many tokens to the host tier, and back. Raises
        ProbeError.
        """
        times: dict[TransferKind, list[float]] = {TransferKind.SLAB_TO_HOST: [], TransferKind.HOST_TO_SLAB: []}
        checksum = 0
        for _ in range(repeats):
            for kind, seconds in times.items():
                began_s = self._engine.engine_s()
                checksum = self._move(kind, 0, tokens, checksum)
                seconds.append(self._engine.engine_s() - began_s)
        return times

    def prompt_time(self, tokens: int) -> float:
        """The engine's seconds in a step of one prompt of so many tokens. Raises ProbeError."""
        began_s = self._engine.engine_s()
        self._engine.send(*(messages := self._prompt(tokens)))
        self._engine.receive(StepDone)
        took_s = self._engine.engine_s() - began_s
        self._engine.send(Close(messages[0].sequence))
        return took_s

    def piece_times(self, tokens: int) -> list[float]:
        """The engine's seconds from safepoint to safepoint in a step of one prompt of so many tokens, as finely as this
        process sees them: it looks all the time, or where it shares the engine's core now and then. Pieces between two
        looks count as equal. Raises ProbeError.
        """
        opened, step = self._prompt(tokens)
        seen, before_s, times = self._engine.page.passed, self._engine.engine_s(), list[float]()
        self._engine.send(opened, step)
        while not self._engine.has_answered():
            if self._engine.shares_core:
                time.sleep(_LOOK_S)
            if (passed := self._engine.page.passed) != seen:
                now_s = self._engine.engine_s()
                times += [(now_s - before_s) / (passed - seen)] * (passed - seen)
                seen, before_s = passed, now_s
        self._engine.receive(StepDone)
        self._engine.send(Close(opened.sequence))
        return times

    def interrupt_time(self, tokens: int, after_s: float) -> InterruptAnswer | None:
        """The answer to an interrupt that came when the engine had been `after_s` in the step of a prompt of so many
        tokens, in the engine's seconds. None: the step had ended before. Raises ProbeError.
        """
        opened, step = self._prompt(tokens)
        self._count += 1
        due_s = self._engine.engine_s() + after_s
        self._engine.send(opened, step)
        while (
            self._engine.engine_s() < due_s and not self._engine.has_answered()
        ):  # a step may be faster than those before it
            time.sleep(_LOOK_S)
        passed, began_s = self._engine.page.passed, self._engine.engine_s()
        self._engine.page.call(self._count)
        self._engine.send(Interrupt(Verdict.SUSPEND, ticket=self._count, up_to_step=step.step))
        safepoint_s = self._next_safepoint(passed, began_s)
        first = self._engine.receive(Interrupted, StepDone)
        ended_s = self._engine.engine_s()
        self._engine.receive(Interrupted, StepDone)
        self._engine.send(Close(opened.sequence))
        is_in_time = isinstance(first, Interrupted) and first.sequence
        return InterruptAnswer(ended_s - began_s, ended_s - safepoint_s) if is_in_time else None

    def _next_safepoint(self, passed: int, since_s: float) -> float:
        """When the engine came to a safepoint after so many that it had passed: midway between the looks at which it
        had not and had. An answer before that ends the wait, too.
        """
        before_s = now_s = since_s
        while self._engine.page.passed == passed and not self._engine.has_answered():
            before_s = now_s
            if self._engine.shares_core:
                time.sleep(_LOOK_S)
            now_s = self._engine.engine_s()
        return (before_s + now_s) / 2

    def _prompt(self, tokens: int) -> tuple[Open, Step]:
        sequence, opened, slot = self._open(TrialRow(0, tokens, decode=False), 1)
        self._count += 1
        columns = (i64([sequence]), i64([0]), i64([tokens]), i8([1]), i32([0]), i64([slot]), i64([tokens]))
        return opened, Step(self._count, *columns)

    def copy_to_host(self, slot: int, tokens: int) -> None:
        """Copy the content of so many slots to the beginning of the host tier. Raises ProbeError."""
        self._move(TransferKind.SLAB_TO_HOST, slot, tokens)

    def _move(self, kind: TransferKind, slot: int, tokens: int, checksum: int = 0) -> int:
        """Run a move; returns the checksum of its bytes."""
        self._count += 1
        region = Region(0, len(self.ready.layers), 0, tokens)
        host = HostRegion(1, 1, 0, tokens * self.ready.kv_bytes_per_token, checksum)
        self._engine.send(Transfer(self._count, kind, 0, region, i64([slot]), i64([tokens]), host))
        done: TransferDone = self._engine.receive(TransferDone)
        if done.status is not TransferStatus.OK:
            raise ProbeError(f"a move of {tokens} tokens failed: {done.detail or done.status.name}")
        return done.checksum

    def map_host_tier(self, tier: ProbeHostTier) -> None:
        """Have the engine map the host tier."""
        self._engine.send(MapHost(tier.path, tier.size_bytes, 1))

    def _steps(self, trial: StepTrial) -> Iterator[list[Message]]:
        """For each repeat what is to be sent: the step, and before it the sequences that it is the first to name."""
        further = trial.repeats + DISCARDED
        sampling = SAMPLED if trial.is_sampled else GREEDY
        opened = [self._open(row, further, sampling=sampling) for row in trial.rows]
        closing: list[list[int]] = [[], []]
        for repeat in range(trial.repeats + DISCARDED):
            messages: list[Message] = [message for _, message, _ in opened] if repeat == 0 else []
            # What a step that has not been answered names must stay open: close what the one before last named.
            messages += [Close(sequence) for sequence in closing[repeat % 2]]
            for index, row in enumerate(trial.rows):
                if repeat and not row.decode:
                    opened[index] = self._open(row, further, opened[index][2], sampling)
                    messages.append(opened[index][1])
            closing[repeat % 2] = [
                sequence for (sequence, _, _), row in zip(opened, trial.rows, strict=True) if not row.decode
            ]
            self._count += 1
            starts = [row.past + (repeat if row.decode else 0) for row in trial.rows]
            yield [
                *messages,
                Step(
                    step=self._count,
                    sequence=i64([sequence for sequence, _, _ in opened]),
                    start=i64(starts),
                    stop=i64([start + row.new for start, row in zip(starts, trial.rows, strict=True)]),
                    sample=i8([1] * len(opened)),
                    extent_row=i32(range(len(opened))),
                    extent_start=i64([slot + start for (_, _, slot), start in zip(opened, starts, strict=True)]),
                    extent_length=i64([row.new for row in trial.rows]),
                ),
            ]
        decoding = [sequence for (sequence, _, _), row in zip(opened, trial.rows, strict=True) if row.decode]
        yield [Close(sequence) for sequence in (*closing[0], *closing[1], *decoding)]

    def _open(
        self, row: TrialRow, further: int, slot: int = -1, sampling: SamplingParams = GREEDY
    ) -> tuple[int, Open, int]:
        """A sequence whose past lies in slots as if computed, with room for `further` tokens; where they begin (rows
        share some if room is short).
        """
        self._count += 1
        span = row.past + row.new + further + 1
        if span > self.ready.slots:
            raise ProbeError(f"a row of {span} tokens does not fit in {self.ready.slots} slots")
        if slot < 0:
            slot = self._random.randrange(self.ready.slots - span + 1)
        tokens = i32(self._random.choices(range(self.ready.vocabulary), k=row.past + row.new))
        starts, lengths = (i64([slot]), i64([row.past])) if row.past else (i64(), i64())
        opened = Open(self._count, tokens, len(tokens), 1 << 20, sampling, extent_start=starts, extent_length=lengths)
        return self._count, opened, slot

    def _run(self, groups: Sequence[list[Message]]) -> Iterator[tuple[StepDone, float]]:
        """Send and take answers as the instance does, never more than two steps outstanding; when each came."""
        *steps, last = groups
        self._engine.send(*steps[0])
        for following in [*steps[1:], []]:
            self._engine.send(*following)
            yield self._engine.receive(StepDone), self._engine.now_s()
        self._engine.send(*last)
