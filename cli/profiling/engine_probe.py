"""A live engine in a child process, asked for single steps and moves as its instance asks: two steps outstanding.

Measures; decides nothing about what to measure (`plan`) or to fit (`profile`). Blocking sockets, one thread.
"""

import os
import random
import select
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from cli.profiling.service_trace import TracedSequence, TracedStep
from dunlin.cost.models import BatchCounts
from dunlin.effects import Address, Message
from dunlin.engine.device.names import CPU, device_kind
from dunlin.engine.process.frames import FrameReader, frame
from dunlin.engine.process.options import EngineOptions
from dunlin.engine.process.progress_page import ProgressPage
from dunlin.messages.engine import (
    Close,
    EngineFailed,
    EngineReady,
    Interrupt,
    Interrupted,
    MapHost,
    Open,
    Step,
    StepDone,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import (
    Header,
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
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT

GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=1.0, seed=1)
STEP_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 600.0
_PROCESS_CLOCK = 2
"""Linux: of the clock that counts a process's CPU time."""
_LOOK_S = 0.0002
_DISCARDED = 2
"""Steps at the beginning of a trial that are not counted: caches and the second outstanding step settle."""


class ProbeError(Exception):
    """The engine cannot be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Which engine to start. `model` is a checkpoint's directory."""

    model: Path
    kv_bytes: int
    dtype: str = "float32"
    threads: int = 1
    deterministic: bool = False
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One row of a trial: `new` tokens after `past` ones whose KV is there. A decode row has one new token."""

    past: int
    new: int = 1
    decode: bool = True


@dataclass(frozen=True, slots=True)
class StepTrial:
    """A step to be measured: its rows, the number of repeats, and whether tokens are drawn with a temperature."""

    regime: str
    rows: tuple[TrialRow, ...]
    repeats: int = 8
    is_sampled: bool = False

    def batch(self) -> BatchCounts:
        """The counts of its middle step: the decode rows' contexts grow by one a step."""
        batch = BatchCounts()
        for row in self.rows:
            if row.decode:
                batch.add_decode(row.past + 1 + _DISCARDED + self.repeats // 2)
            else:
                batch.add_prefill(row.new, row.past)
        batch.sampled_rows = len(self.rows) if self.is_sampled else 0
        return batch


@dataclass(frozen=True, slots=True)
class ProbedStep:
    """One step as it was seen: the engine's time in it, and what else passed since the one before it ended, less what
    this process computed itself where it shares a core with the engine.
    """

    compute_s: float
    gap_s: float


@dataclass(frozen=True, slots=True)
class InterruptAnswer:
    """An answer that came `took_s` after its interrupt, and `delay_s` of these after the safepoint."""

    took_s: float
    delay_s: float


@dataclass(slots=True)
class _Opened:
    """A text at the engine: its number there, and the first of its slots."""

    sequence: int
    slot: int


class EngineProbe:
    """Owns the engine's process and its memory. Use as a context manager; raises ProbeError if it does not start."""

    def __init__(self, choice: ProbeOptions, seed: int = 0) -> None:
        self.is_on_cpu = device_kind(choice.device) == CPU
        self._random = random.Random(seed)
        self._fds = os.memfd_create("dunlin-arena"), os.memfd_create("dunlin-progress")
        self._page = ProgressPage(self._fds[1])
        self._socket, theirs = socket.socketpair()
        options = EngineOptions(
            model=choice.model,
            name="profile",
            incarnation=1,
            parent_pid=os.getpid(),
            socket_fd=theirs.fileno(),
            arena_fd=self._fds[0],
            progress_fd=self._fds[1],
            kv_bytes=choice.kv_bytes,
            dtype=choice.dtype,
            deterministic=choice.deterministic,
            threads=choice.threads,
            device=choice.device,
        )
        began_s = time.perf_counter()
        environment = options.environment(os.environ)
        self._process = subprocess.Popen(options.command(), pass_fds=options.fds, env=environment)
        theirs.close()
        self._poll = select.poll()  # `select` takes no descriptor beyond 1023
        self._poll.register(self._socket, select.POLLIN)
        self._reader = FrameReader()
        self._events: deque[Message] = deque()
        self._header = Header(Address("instance", "profile", 1))
        self._count = 0
        self._shares_core = len(os.sched_getaffinity(0)) == 1
        self.ready = self._get_ready()
        self.load_s = time.perf_counter() - began_s

    def __enter__(self) -> "EngineProbe":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the engine and let its memory go."""
        self._socket.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for fd in self._fds:
            os.close(fd)

    def measure_step(self, trial: StepTrial) -> list[ProbedStep]:
        """The trial's steps, in order. Raises ProbeError."""
        steps = list(self._steps(trial))
        turns: list[ProbedStep] = []
        before_s = 0.0
        for number, (done, at_s) in enumerate(self._run(steps)):
            if len(done.sequence) != len(trial.rows):
                raise ProbeError(f"a step of {len(trial.rows)} rows gave {len(done.sequence)} tokens")
            if number >= _DISCARDED:
                turns.append(ProbedStep(done.compute_s, max(0.0, at_s - before_s - done.compute_s)))
            before_s = at_s
        return turns

    def _now_s(self) -> float:
        """Seconds on a clock that stands still while this process keeps the engine from its core."""
        return time.perf_counter() - (time.process_time() if self._shares_core else 0.0)

    def run_trace(self, beats: Sequence[TracedStep]) -> list[ProbedStep]:
        """Run the steps in order, each sent while the one before it runs, but after a pause. Raises ProbeError."""
        opened: dict[TracedSequence, _Opened] = {}
        turns: list[ProbedStep] = []
        sent, before_s = 0, self._now_s()
        for number, beat in enumerate(beats):
            while sent < len(beats) and (sent == number or (sent == number + 1 and not beats[sent].pause_s)):
                if beats[sent].pause_s:
                    time.sleep(beats[sent].pause_s)
                    before_s = self._now_s()
                self._send(*self._beat(beats[sent], opened))
                sent += 1
            done: StepDone = self._receive(StepDone)
            ended_s = self._now_s()
            turns.append(ProbedStep(done.compute_s, max(0.0, ended_s - before_s - done.compute_s)))
            before_s = ended_s
            over = [part.sequence for part in beat.rows if part.is_last]
            self._send(*[Close(opened.pop(text).sequence) for text in over])
        self._send(*[Close(each.sequence) for each in opened.values()])
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
                began_s = self._engine_s()
                checksum = self._move(kind, 0, tokens, checksum)
                seconds.append(self._engine_s() - began_s)
        return times

    def _engine_s(self) -> float:
        """Seconds on the engine's clock: the CPU time of its process where it shares this one's core, so that
        neighbours there do not count. Elsewhere the clock: of a process that runs on another core Linux tells the CPU
        time of its last tick, which may be milliseconds ago.
        """
        if not self._shares_core:
            return time.perf_counter()
        return time.clock_gettime(~self._process.pid << 3 | _PROCESS_CLOCK)

    def prompt_time(self, tokens: int) -> float:
        """The engine's seconds in a step of one prompt of so many tokens. Raises ProbeError."""
        began_s = self._engine_s()
        self._send(*(messages := self._prompt(tokens)))
        self._receive(StepDone)
        took_s = self._engine_s() - began_s
        self._send(Close(messages[0].sequence))
        return took_s

    def piece_times(self, tokens: int) -> list[float]:
        """The engine's seconds from safepoint to safepoint in a step of one prompt of so many tokens, as finely as this
        process sees them: it looks all the time, or where it shares the engine's core now and then. Pieces between two
        looks count as equal. Raises ProbeError.
        """
        opened, step = self._prompt(tokens)
        seen, before_s, times = self._page.passed, self._engine_s(), list[float]()
        self._send(opened, step)
        while not self._poll.poll(0):
            if self._shares_core:
                time.sleep(_LOOK_S)
            if (passed := self._page.passed) != seen:
                now_s = self._engine_s()
                times += [(now_s - before_s) / (passed - seen)] * (passed - seen)
                seen, before_s = passed, now_s
        self._receive(StepDone)
        self._send(Close(opened.sequence))
        return times

    def interrupt_time(self, tokens: int, after_s: float) -> InterruptAnswer | None:
        """The answer to an interrupt that came when the engine had been `after_s` in the step of a prompt of so many
        tokens, in the engine's seconds. None: the step had ended before. Raises ProbeError.
        """
        opened, step = self._prompt(tokens)
        self._count += 1
        due_s = self._engine_s() + after_s
        self._send(opened, step)
        while self._engine_s() < due_s and not self._poll.poll(0):  # a step may be faster than those before it
            time.sleep(_LOOK_S)
        passed, began_s = self._page.passed, self._engine_s()
        self._page.call(self._count)
        self._send(Interrupt(Verdict.SUSPEND, ticket=self._count, up_to_step=step.step))
        safepoint_s = self._next_safepoint(passed, began_s)
        first = self._receive(Interrupted, StepDone)
        ended_s = self._engine_s()
        self._receive(Interrupted, StepDone)
        self._send(Close(opened.sequence))
        is_in_time = isinstance(first, Interrupted) and first.sequence
        return InterruptAnswer(ended_s - began_s, ended_s - safepoint_s) if is_in_time else None

    def _next_safepoint(self, passed: int, since_s: float) -> float:
        """When the engine came to a safepoint after so many that it had passed: midway between the looks at which it
        had not and had. An answer before that ends the wait, too.
        """
        before_s = now_s = since_s
        while self._page.passed == passed and not self._poll.poll(0):
            before_s = now_s
            if self._shares_core:
                time.sleep(_LOOK_S)
            now_s = self._engine_s()
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
        self._send(Transfer(self._count, kind, 0, region, i64([slot]), i64([tokens]), host))
        done: TransferDone = self._receive(TransferDone)
        if done.status is not TransferStatus.OK:
            raise ProbeError(f"a move of {tokens} tokens failed: {done.detail or done.status.name}")
        return done.checksum

    def map_host_tier(self, tier: "ProbeHostTier") -> None:
        """Have the engine map the host tier."""
        self._send(MapHost(tier.path, tier.size_bytes, 1))

    def _get_ready(self) -> EngineReady:
        self._socket.settimeout(LOAD_TIMEOUT_S)
        try:
            ready: EngineReady = self._receive(EngineReady)
        except ProbeError:
            self.close()
            raise
        self._socket.settimeout(STEP_TIMEOUT_S)
        return ready

    def _steps(self, trial: StepTrial) -> Iterator[list[Message]]:
        """For each repeat what is to be sent: the step, and before it the sequences that it is the first to name."""
        further = trial.repeats + _DISCARDED
        sampling = SAMPLED if trial.is_sampled else GREEDY
        opened = [self._open(row, further, sampling=sampling) for row in trial.rows]
        closing: list[list[int]] = [[], []]
        for repeat in range(trial.repeats + _DISCARDED):
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
        self._send(*steps[0])
        for following in [*steps[1:], []]:
            self._send(*following)
            yield self._receive(StepDone), self._now_s()
        self._send(*last)

    def _send(self, *messages: Message) -> None:
        data = b"".join(frame(ENGINE_COMMAND.encode(self._header, message)) for message in messages)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ProbeError(f"the engine is gone: {error}") from error

    def _receive(self, *kinds: type[Any]) -> Any:
        while not self._events:
            try:
                data = self._socket.recv(1 << 20)
            except OSError as error:
                raise ProbeError(f"the engine does not answer: {error}") from error
            if not data:
                raise ProbeError("the engine ended")
            self._events += [ENGINE_EVENT.decode(body)[1] for body in self._reader.feed(data)]
        event = self._events.popleft()
        if isinstance(event, EngineFailed):
            raise ProbeError(event.reason)
        if isinstance(event, Unsupported):
            raise ProbeError(f"the engine refuses {event.what}: {event.detail}")
        if not isinstance(event, kinds):
            raise ProbeError(f"the engine said {type(event).__name__} where {kinds[0].__name__} was due")
        return event


class ProbeHostTier:
    """A host tier for measuring: shared memory that is there already. Close it after the engine."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._fd = os.memfd_create("dunlin-tier")
        os.posix_fallocate(self._fd, 0, size_bytes)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Release the memory; every mapping of it must be gone."""
        os.close(self._fd)


def lower_quartile(values: Sequence[float]) -> float:
    """The lower quartile: the time on a machine that does nothing else, or nearly."""
    return sorted(values)[len(values) // 4]
