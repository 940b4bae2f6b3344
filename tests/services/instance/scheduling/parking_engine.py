"""An engine that keeps the contract of `dunlin/messages/engine.py` to the letter, one safepoint at a time.

It holds the content of every slot, so a row that reads KV which is not there, or not its own, fails. Time does not
exist: `tick` goes to the next safepoint or to the end of the step.
"""

from collections import deque
from dataclasses import dataclass, field

from dunlin.effects import Message
from dunlin.messages.engine import Close, Discard, Interrupt, Interrupted, Open, Resume, Step, StepDone
from dunlin.messages.types import FinishReason, Verdict, f32, i8, i32, i64
from simulator.engine.sequences import slots_of_extents
from simulator.engine.token_model import continuation, digest_of

PIECES = 2
"""Pieces of a layer's attention, each of which ends at a safepoint."""
SAFEPOINTS = 3 * PIECES


@dataclass(slots=True, eq=False)
class OpenSequence:
    """A sequence, and the slot of each position whose KV it has."""

    number: int
    tokens: list[int]
    prompt_tokens: int
    max_length: int
    seed: int
    slots: list[int]
    is_over: bool = False

    def check_kv(self, start: int, kv: dict[int, object]) -> None:
        """The first `start` positions have their KV, and nothing else has been written there."""
        assert start <= len(self.slots), f"{self.number}: a row starts at {start}, KV ends at {len(self.slots)}"
        for position in range(start):
            assert kv.get(self.slots[position]) == digest_of(self.tokens[: position + 1]), f"KV of {position} is wrong"


@dataclass(slots=True)
class EngineRow:
    number: int
    start: int
    stop: int
    samples: int
    slots: list[int]


@dataclass(slots=True)
class QueuedStep:
    """`safepoint` is the last one passed; a resumed one begins where its rows stood."""

    number: int
    rows: list[EngineRow]
    safepoint: int = 0
    left: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ParkingEngine:
    """`kv` outlives it. It parks at most `room` rows. `dones_first`: the answers of a safepoint come the other way."""

    kv: dict[int, object]
    room: int = 99
    dones_first: bool = False
    said: list[Message] = field(default_factory=list)
    sequences: dict[int, OpenSequence] = field(default_factory=dict)
    queue: deque[QueuedStep] = field(default_factory=deque)
    parked: dict[int, tuple[EngineRow, int]] = field(default_factory=dict)
    interrupts: list[Interrupt] = field(default_factory=list)
    most_queued: int = 0

    def receive(self, message: Message) -> None:
        if isinstance(message, Open):
            self._open(message)
        elif isinstance(message, Close):
            self.sequences.pop(message.sequence, None)
            self.parked.pop(message.sequence, None)
        elif isinstance(message, Step):
            assert not set(message.sequence) & set(self.parked), "a step names a sequence with a parked row"
            self.queue.append(QueuedStep(message.step, _rows_of(message)))
        elif isinstance(message, Resume):
            rows = [self.parked.pop(number) for number in message.sequence if number in self.parked]
            assert len({safepoint for _, safepoint in rows}) == 1, "rows at different places in one step"
            self.queue.append(QueuedStep(message.step, [row for row, _ in rows], rows[0][1]))
        elif isinstance(message, Discard):
            for number in message.sequence:
                self.parked.pop(number, None)
        elif isinstance(message, Interrupt):
            self.interrupts.append(message)
            if not self.queue:
                self._take_interrupts(None)
        self.most_queued = max(self.most_queued, len(self.queue))

    def tick(self) -> None:
        """Go on to the next safepoint, or to the end of the running step."""
        if not self.queue:
            return
        running = self.queue[0]
        if not self._is_decode_only(running) and running.safepoint < SAFEPOINTS - 1:
            running.safepoint += 1
            if self.interrupts:
                self._take_interrupts(running)
            return
        self.queue.popleft()
        self.said.append(self._finish(running))
        if self.interrupts:
            self._take_interrupts(None)

    def crash(self) -> None:
        """The rows of the running step have written half of what they were to write."""
        for row in self.queue[0].rows if self.queue else ():
            self._spoil(row)

    def _open(self, message: Open) -> None:
        assert message.sequence not in self.sequences
        slots = slots_of_extents(message.extent_start, message.extent_length)
        length = message.prompt_tokens + message.max_tokens
        self.sequences[message.sequence] = OpenSequence(
            message.sequence, list(message.tokens), message.prompt_tokens, length, message.sampling.seed, slots
        )
        self.sequences[message.sequence].check_kv(len(slots), self.kv)

    def _is_decode_only(self, step: QueuedStep) -> bool:
        known = [(row, self.sequences.get(row.number)) for row in step.rows]
        return all(one is None or (row.stop - row.start == 1 and row.start >= one.prompt_tokens) for row, one in known)

    def _take_interrupts(self, running: QueuedStep | None) -> None:
        answers: list[Message] = [self._leave(interrupt, running) for interrupt in self.interrupts]
        self.interrupts.clear()
        dones: list[Message] = [_answer(step) for step in self.queue if not step.rows]
        self.queue = deque(step for step in self.queue if step.rows)
        self.said += [*dones, *answers] if self.dones_first else [*answers, *dones]

    def _leave(self, interrupt: Interrupt, running: QueuedStep | None) -> Interrupted:
        left: list[tuple[int, int, int, int, int]] = []
        only, up_to = interrupt.step, interrupt.up_to_step
        for step in [step for step in self.queue if (step.number == only if only else step.number <= up_to)]:
            named = [row for row in step.rows if row.number in interrupt.sequence or not interrupt.sequence]
            for row in [row for row in named if step is not running or row.number in self.sequences]:
                parks = step is running and interrupt.verdict is Verdict.SUSPEND and len(self.parked) < self.room
                if step is running:
                    self._spoil(row)
                if parks:
                    self.parked[row.number] = (row, step.safepoint)
                layer, block = divmod(step.safepoint if step is running else 0, PIECES)
                left.append((row.number, step.number, layer, block, int(parks)))
                step.rows.remove(row)
                step.left.append(row.number)
        numbers, steps, layers, blocks, parked = zip(*left, strict=True) if left else ((), (), (), (), ())
        return Interrupted(i64(numbers), interrupt.ticket, i64(steps), i32(layers), i32(blocks), i8(parked))

    def _spoil(self, row: EngineRow) -> None:
        for slot in row.slots:
            self.kv[slot] = (row.number, row.start)

    def _finish(self, step: QueuedStep) -> StepDone:
        done = _answer(step)
        for row in step.rows:
            sequence = self.sequences.get(row.number)
            if sequence is None or sequence.is_over:
                done.dropped.append(row.number)
                continue
            sequence.check_kv(row.start, self.kv)
            sequence.slots[row.start :] = row.slots
            for position, slot in enumerate(row.slots, row.start):
                self.kv[slot] = digest_of(sequence.tokens[: position + 1])
            if row.samples:
                self._sample(sequence, row, done)
        return done

    def _sample(self, sequence: OpenSequence, row: EngineRow, done: StepDone) -> None:
        assert row.stop == len(sequence.tokens), f"{row.number} samples after {row.stop} of {len(sequence.tokens)}"
        (token,) = continuation(sequence.tokens, 1, sequence.seed)
        sequence.tokens.append(token)
        sequence.is_over = len(sequence.tokens) >= sequence.max_length
        done.sequence.append(row.number)
        done.token.append(token)
        done.logprob.append(-0.5)
        done.finish.append(FinishReason.LENGTH if sequence.is_over else FinishReason.RUNNING)


def _answer(step: QueuedStep) -> StepDone:
    return StepDone(step.number, i64(), i32(), f32(), i8(), i64(), left=i64(step.left))


def _rows_of(step: Step) -> list[EngineRow]:
    columns = zip(step.sequence, step.start, step.stop, step.sample, strict=True)
    rows = [EngineRow(number, start, stop, samples, []) for number, start, stop, samples in columns]
    for row, first, length in zip(step.extent_row, step.extent_start, step.extent_length, strict=True):
        rows[row].slots += range(first, first + length)
    for each in rows:
        assert len(each.slots) == each.stop - each.start
    return rows
