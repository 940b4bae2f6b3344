"""Runs steps: the queue, the step that is computed, and the rows that left one and can come back.

Every step and every resume gets one answer, every interrupt one. Knows no transfer but whether it has landed.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from dunlin.effects import Address
from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.iteration import Safepoint
from dunlin.engine.decoder.row_progress import WorkCount
from dunlin.engine.device.pacing import Pacer
from dunlin.engine.execution.interrupted_rows import InterruptedRows
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.parked_rows import ParkedRow, ParkedRows
from dunlin.engine.execution.parked_steps import ParkedStep, ParkedSteps
from dunlin.engine.execution.prompt_scores import PromptScorer
from dunlin.engine.execution.running_step import RunningStep
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.engine.execution.step_batch import (
    EngineShape,
    SampledRows,
    StepError,
    check_step,
)
from dunlin.engine.execution.step_iterations import StepIterations
from dunlin.engine.execution.step_queue import QueuedStep, StepQueue
from dunlin.engine.execution.step_starter import StepStarter
from dunlin.engine.execution.steps_ahead import StepsAhead, UnreadStep
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.peer_link import PeerLink
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import Discard, Interrupt, Interrupted, Resume, Step, StepDone, Unsupported
from dunlin.messages.types import Ints, Verdict

Event = Any
LOOK_AHEAD_S = 0.3e-3
"""Between two looks for the next step: a look costs some 20 µs."""


class StepRunner:
    """Owns the queue, the running step and the parked rows; `rooms` are the engine's.

    `sequences` are the open ones. `is_landing(transfer)`: it is not answered yet; `spoiled(transfers)`: the sequences
    whose KV they failed to bring. `beat` is called after each layer of a step without safepoints. `work_clock`: as
    `EngineRunner`'s. `pacer` waits for what a step launched.
    `may_run_ahead()`: a step may be launched before the tokens of the one before are read.
    """

    def __init__(
        self,
        decoder: Decoder,
        shape: EngineShape,
        clock: Callable[[], float],
        limits: RunnerLimits,
        sequences: Mapping[int, EngineSequence],
        is_landing: Callable[[int], bool],
        spoiled: Callable[[Sequence[int]], AbstractSet[int]],
        beat: Callable[[], object],
        rooms: TransitRooms,
        links: Callable[[Sequence[Address], Ints, Ints, int], list[PeerLink]],
        give_up_exchange: Callable[[Step], None],
        work_clock: Callable[[], float],
        iterations: StepIterations,
        pacer: Pacer,
        may_run_ahead: Callable[[], bool],
    ) -> None:
        self.last_step_s = 0.0
        self.parked = ParkedRows(limits.parked_rows, limits.parked_bytes)
        self.suspended = ParkedSteps(limits.parked_steps, limits.parked_bytes)
        self.rooms = rooms
        self._pacer = pacer
        self._is_ahead = False
        self._give_up_exchange = give_up_exchange
        self._decoder = decoder
        self._iterations = iterations
        self._shape = shape
        self._clock = clock
        self._limits = limits
        self._sequences = sequences
        self._spoiled = spoiled
        self._beat = beat
        self._queue = StepQueue(is_landing)
        self._running: RunningStep | None = None
        self._interrupts: list[Interrupt] = []
        scorer = PromptScorer(decoder.logits, decoder.config.vocab, work_clock, limits.response_s)
        self._starter = StepStarter(
            decoder, shape, sequences, self.parked, self.suspended, rooms, links, iterations, scorer, self._give_up
        )
        self._ahead = StepsAhead(self._queue, self._starter, sequences, pacer, may_run_ahead)
        self._unread: UnreadStep | None = None
        self._since_s = self._idle_since_s = clock()

    def __len__(self) -> int:
        """Steps that are not answered."""
        return len(self._queue) + (self._running is not None) + (self._unread is not None)

    @property
    def count(self) -> WorkCount:
        """What was computed of rows."""
        return self._iterations.count

    @property
    def is_running(self) -> bool:
        """Whether a step has begun and has not been answered."""
        return self._running is not None

    @property
    def is_ahead(self) -> bool:
        """Whether all of the running step is launched already: the engine stands between two steps."""
        return self._is_ahead

    @property
    def is_waiting(self) -> bool:
        """Whether the running step can go on only when a peer has sent something."""
        return self._running is not None and not self._interrupts and self._running.is_waiting

    @property
    def has_parked(self) -> bool:
        """Whether rows or steps are parked."""
        return len(self.parked) > 0 or len(self.suspended) > 0

    @property
    def progress(self) -> tuple[int, int] | None:
        """(number, the layer after the last one finished) of the running step; None without one."""
        return None if self._running is None else (self._running.number, self._running.layer)

    @property
    def layers_left(self) -> int:
        """Of the running step, the layers that are not launched yet."""
        return 0 if self._running is None else self._running.layers.stop - self._running.layer

    def change_shape(self, shape: EngineShape) -> None:
        """Layers or slots changed; no step runs."""
        self._shape = shape
        self._starter.change_shape(shape)

    def is_unanswered(self, step: int) -> bool:
        """Whether that step is queued or running, or was not read yet."""
        begun = [self._running, None if self._unread is None else self._unread.step]
        is_begun = any(each is not None and each.number == step for each in begun)
        return is_begun or any(queued.number == step for queued in self._queue)

    # --- commands ---

    def on_step(self, message: Step) -> list[Event]:
        """Queue a step."""
        if len(self._queue) >= self._limits.steps:
            return [Unsupported("Step", f"{self._limits.steps} steps are queued", step=message.step)]
        try:
            extents = check_step(message, self._shape)
        except StepError as error:
            return [Unsupported("Step", str(error), step=message.step)]
        queued = QueuedStep(message.step, list(message.sequence), message.after, message, extents)
        queued.is_serving = message.serve is not None
        self._queue.append(queued)
        return []

    def on_resume(self, message: Resume) -> list[Event]:
        """Queue parked rows."""
        named, after, number = list(message.sequence), list(message.after), message.parked_step
        try:
            if len(self._queue) >= self._limits.steps:
                raise StepError(f"{self._limits.steps} steps are queued")
            if number:
                parked = self.suspended.claim(number)
                named, after = parked.sequences, [*after, *parked.after]
            elif not named or len(set(named)) != len(named):
                raise StepError("it names no sequence, or one twice")
            else:
                self.parked.claim([sequence for sequence in named if sequence in self._sequences])
        except StepError as error:
            return [Unsupported("Resume", str(error), step=message.step)]
        queued = QueuedStep(message.step, list(named), after, is_serving=number > 0, parked=number)
        self._queue.append(queued)
        return []

    def on_interrupt(self, message: Interrupt) -> list[Event]:
        """Let rows leave: at the next safepoint, where the running step stands now, or at once if none runs."""
        self._interrupts.append(message)
        return [] if self._running is not None else self.take_interrupts()

    def discard(self, message: Discard) -> None:
        """Forget parked rows, and a parked step, if no queued step is to resume them."""
        for sequence in message.sequence:
            if self.parked.is_discardable(sequence):
                self.parked.remove(sequence)
        if (parked := self.suspended.remove(message.parked_step)) is not None:
            self._give_up(parked.step)

    def forget(self, sequence: int) -> None:
        """The sequence is closed."""
        self.parked.remove(sequence)
        self.suspended.close(sequence)
        self.rooms.forget(sequence)

    # --- the running step ---

    def wait_ahead(self) -> bool:
        """While nothing can be launched behind a step all of which was launched: wait for it for a moment, in which the
        next one may arrive; whether it is still under way.
        """
        if not self._is_ahead or self._running is None or not self._next_may_come:
            return False
        self._running.choose(self._decoder, self.rooms)  # so that a device goes on with it
        return not self._pacer.advance(LOOK_AHEAD_S)

    def _waits_for_next(self, running: RunningStep) -> bool:
        """Whether all of a step was launched just now, and another may arrive to be launched behind it."""
        if self._is_ahead or not running.done:
            return False
        return running.layers.stop == self._shape.layers and self._next_may_come and not self._pacer.advance(0.0)

    @property
    def _next_may_come(self) -> bool:
        return not self._interrupts and self._ahead.may_come

    def work(self, safepoint: Safepoint) -> list[Event]:
        """Take in the interrupts that wait for this safepoint; or else compute the running step, or the next one that
        is ready, until it is done or a safepoint asks for a pause. What was launched before the running step is read
        first: at once for an interrupt, else when the device is done with it.
        """
        is_launched = self._is_ahead or (self._running is not None and self._running.done)
        if self._interrupts and not is_launched and self._unread is None:
            return self.take_interrupts()
        queued = self._queue.pop_ready() if self._running is None else None
        if self._running is None and queued is None:
            return []
        self._since_s = self._idle_since_s if self._is_ahead else self._clock()
        if self._unread is not None and (self._interrupts or self._can_read):
            return [self._read(self._unread)]
        if queued is not None:
            try:
                self._running = self._starter.begin(queued, self._spoiled(queued.after))
            except StepError as error:
                what = "Resume" if queued.step is None else "Step"
                self._give_up(queued)
                return [Unsupported(what, str(error), step=queued.number)]
            self._running.idle_s = self._since_s - self._idle_since_s
        assert self._running is not None
        events = self._compute(self._running, safepoint)
        return [*events, *self.take_interrupts()] if self._interrupts and self._running is None else events

    def take_interrupts(self) -> list[Event]:
        """Let the rows leave: the answers of the interrupts, then those of the steps that have no row left."""
        pending, self._interrupts = self._interrupts, []
        suspended: list[Event] = []
        events: list[Event] = [self._interrupt(message, suspended) for message in pending]
        events += suspended
        running = self._running
        if running is not None and not running.rows and not running.is_serving:
            running.give_up()
            events.append(running.answer(SampledRows()))
            self._running = None
        for queued in self._queue.pop_empty():
            self._give_up(queued)
            if queued.parked:
                self.suspended.unclaim(queued.parked)
                self.discard(Discard(parked_step=queued.parked))
            empty = RunningStep(queued.number, (), range(0), None, left=queued.left).answer(SampledRows())
            events.append(replace(empty, cut_short=True) if queued.has_peers else empty)
        return events

    def _give_up(self, step: RunningStep | QueuedStep) -> None:
        """Its peers would wait for ever for what they share with it."""
        if isinstance(step, RunningStep):
            step.give_up()
        elif step.step is not None and step.step.peers:
            self._give_up_exchange(step.step)

    def _compute(self, running: RunningStep, safepoint: Safepoint) -> list[Event]:
        try:
            running.run(lambda: safepoint() or self._can_read, self._beat)
            if self._unread is not None and (running.done or self._can_read):
                return [self._read(self._unread)]  # an instance sends the step after the next one then
            if self._waits_for_next(running):
                self._is_ahead, self._idle_since_s = True, self._since_s
                return []
            samples = self._finish(running) if running.done else None
        except TransferError:  # a peer is gone, computes something else, or wrote over the room
            samples, self._running, self._is_ahead = running.abandon(), None, False
        self._count_time(running)
        return [] if samples is None else [self._answer(running, samples)]

    @property
    def _can_read(self) -> bool:
        """Whether the device is done with a step that was not read."""
        return self._unread is not None and self._unread.mark.is_done

    def _finish(self, running: RunningStep) -> SampledRows | None:
        """The tokens of a step whose layers are launched; None: the next step runs, and they are read meanwhile."""
        running.choose(self._decoder, self.rooms)
        following = None if self._interrupts else self._ahead.start_behind(running, self._shape)
        self._running = None if following is None else following.step
        if following is None:
            samples, self._is_ahead = running.finish(self.rooms), False
            self._pacer.settle()
            return samples
        if following.mark is not None:
            self._unread, self._is_ahead = UnreadStep(running, following.mark), False
            return None
        following.step.run(lambda: False, self._beat)
        self._is_ahead = True
        return running.finish(self.rooms)

    def _read(self, unread: UnreadStep) -> StepDone:
        """The answer of a step behind which the running one was started."""
        unread.mark.wait()
        self._unread = None
        samples = unread.step.finish(self.rooms)
        self._count_time(unread.step)
        return self._answer(unread.step, samples)

    def _count_time(self, running: RunningStep) -> None:
        """The engine's time up to now went to a step; while there is one that was not read, to that one."""
        now_s = self._clock()
        (running if self._unread is None else self._unread.step).compute_s += now_s - self._since_s
        self._since_s = self._idle_since_s = now_s

    def _answer(self, running: RunningStep, samples: SampledRows) -> StepDone:
        self.last_step_s = running.compute_s
        for row in running.rows.values():
            if row.hidden_out and row.sequence not in self._sequences:  # closed while it ran
                self.rooms.forget(row.sequence)
        return running.answer(samples)

    def _interrupt(self, message: Interrupt, suspended: list[Event]) -> Interrupted:
        """`suspended`: takes in the answer of a step that is parked whole."""
        named = set(message.sequence) or None
        gone = InterruptedRows()
        if message.step and message.verdict is Verdict.SUSPEND:
            suspended += self._suspend(message.step, gone)
            if gone.parked_step:
                return gone.answer(message.ticket)
        if self._running is not None and message.step in (0, self._running.number):
            self._leave_running(self._running, message.verdict, named, gone)
        for queued in self._queue:
            if queued.number == message.step if message.step else queued.number <= message.up_to_step:
                for sequence in queued.forget(named):
                    gone.add(sequence, queued.number)
                    if queued.step is None:
                        self.parked.remove(sequence)
        return gone.answer(message.ticket)

    def _leave_running(
        self, running: RunningStep, verdict: Verdict, named: AbstractSet[int] | None, gone: InterruptedRows
    ) -> None:
        if named is None:
            running.stop_serving()
        for number, row in list(running.rows.items()):
            if named is not None and row.sequence not in named:
                continue
            progress = running.leave(number)
            wanted = verdict is Verdict.SUSPEND and row.sequence in self._sequences and not running.has_peers
            parked = wanted and self.parked.park(ParkedRow(row, progress, running.layers))
            gone.add(row.sequence, running.number, progress.layer, progress.block, parked)

    def _suspend(self, number: int, gone: InterruptedRows) -> list[Event]:
        """Park a step with peers whole, if there is one of that number and room for it; returns its answer."""
        running = self._running
        if running is not None and running.number == number and running.has_peers:
            closed = {row.sequence for row in running.rows.values() if row.sequence not in self._sequences}
            self._leave_running(running, Verdict.DISCARD, closed, gone)
            has_left = not running.rows and not running.is_serving
            if has_left or not self.suspended.park(ParkedStep(running, self._shape.layout)):
                return []
            gone.park(number, [row.sequence for row in running.rows.values()], running.layer)
            self._running = None
            return [running.answer_suspended()]
        queued = self._queue.with_peers(number)
        if queued is None:
            return []
        if queued.parked:
            self.suspended.rename(queued)
        elif not self.suspended.park(ParkedStep(queued, self._shape.layout, queued.after)):
            return []
        self._queue.remove(queued)
        gone.park(number, queued.sequences, 0)
        return [queued.answer_suspended()]
