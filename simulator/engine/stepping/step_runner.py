"""The steps of a modelled engine: one runs, others are queued, and rows that left the running one may be parked.

The results of a step come into being at its end. Rows leave at a safepoint of the running step (`Interrupt`), each
with its own fate; the rows that stay go on in the time that is theirs. Of transfers this knows only whether one is
pending or failed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from dunlin.cost.interrupts import InterruptTimes
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.engine import Discard, Interrupt, Resume, Step, Unsupported
from dunlin.messages.types import Verdict, i64
from simulator.engine.errors import ContractBroken
from simulator.engine.kv_audit import KvAudit
from simulator.engine.layers import LayerSet
from simulator.engine.sequences import SimulatedSequences
from simulator.engine.stepping.group_steps import GroupSteps
from simulator.engine.stepping.leaving_rows import LeavingRows, leaving_tokens
from simulator.engine.stepping.parked_rows import SimulatedParkedRows
from simulator.engine.stepping.parked_steps import SimulatedParkedSteps
from simulator.engine.stepping.row_compute import RowComputer
from simulator.engine.stepping.running_step import LAYER_UNITS, SimulatedRunningStep
from simulator.engine.stepping.step_queue import QueuedSimStep, SimulatedStepQueue, check_step, repeats, slots_of_rows
from simulator.engine.stepping.step_results import IterationResult, step_done
from simulator.engine.timing import Timing

LEAST_DELAY = 1e-3
"""The part of a step's time that copies take at least before its end is put off."""


@dataclass(frozen=True, slots=True)
class StepDue:
    """The running step's time is up, unless another `turn` has begun since."""

    turn: int


@dataclass(frozen=True, slots=True)
class SafepointDue:
    """The step of this `turn` reaches the safepoint at `units`, at which interrupts take effect."""

    turn: int
    units: int


class SimulatedStepRunner:
    """Owns the queue, the running step, the parked rows, and the interrupts that have not taken effect.

    `busy_s`: seconds of steps so far, `safepoints` those passed in steps that ended. `slowness` multiplies the time of
    each step. `is_landing(move)`: the transfer is not answered. `between_steps(now_s)` is called when a step ended,
    before the next one begins. `lost_s(now_s)`: what copies took from steps since it was last called.
    """

    def __init__(
        self,
        instance: Address,
        sequences: SimulatedSequences,
        rows: RowComputer,
        timing: Timing,
        layers: LayerSet,
        vocabulary: int,
        audit: KvAudit | None,
        is_landing: Callable[[int], bool],
        parked: SimulatedParkedRows,
        suspended: SimulatedParkedSteps,
        between_steps: Callable[[float], list[Effect]],
        group: GroupSteps,
        lost_s: Callable[[float], float],
        interrupts: InterruptTimes,
    ) -> None:
        self.queue = SimulatedStepQueue(is_landing)
        self.parked = parked
        self.suspended = suspended
        self.busy_s = 0.0
        self.safepoints = 0
        self.slowness = 1.0
        self.running: SimulatedRunningStep | None = None
        self._instance = instance
        self._sequences = sequences
        self._rows = rows
        self._timing = timing
        self._layers = layers
        self._vocabulary = vocabulary
        self._audit = audit
        self._between_steps = between_steps
        self._group = group
        self._lost_s = lost_s
        self._interrupt_times = interrupts
        self._interrupts: list[Interrupt] = []
        self._received: Step | None = None
        self._turn = 0
        self._idle_since_s = 0.0
        self._carried_s = 0.0

    @property
    def has_parked(self) -> bool:
        """Whether rows or steps are parked."""
        return len(self.parked) > 0 or len(self.suspended.by_number) > 0

    @property
    def steps_held(self) -> int:
        """How many steps run or wait."""
        return len(self.queue) + (self.running is not None)

    def is_unanswered(self, step: int) -> bool:
        """Whether that step is queued or running."""
        held = [*self.queue.steps, *([self.running.queued] if self.running is not None else [])]
        return any(queued.step.step == step for queued in held)

    def is_running(self, step: int) -> bool:
        """Whether that step computes now."""
        return self.running is not None and self.running.queued.step.step == step

    def add(self, now_s: float, step: Step) -> list[Effect]:
        """Append a step to the queue.

        Raises:
            ContractBroken: its columns contradict each other.
        """
        rows, has_peers, before = list(range(len(step.sequence))), len(step.peers) > 0, self._received
        is_repeat = before is not None and not has_peers and repeats(step, before)
        if not is_repeat:
            check_step(step)
        self._received = step
        queued = QueuedSimStep(step, rows, is_serving=step.serve is not None, has_peers=has_peers, is_repeat=is_repeat)
        if step.layer_start or step.layer_stop or not self._layers.is_whole:
            layers = self._layers.range_of(step)
            queued.layers = layers if len(layers) < self._layers.all else None
        self.queue.append(queued)
        return self.begin(now_s)

    def add_cpu_delay(self, seconds: float) -> None:
        """Delay the end of the running step, if there is one, by `seconds`: another process uses the engine's CPU."""
        if self.running is not None:
            self.running.hold(seconds)

    def begin(self, now_s: float) -> list[Effect]:
        """Start the first queued step that may start, unless a step runs.

        Raises:
            ContractBroken: it names a sequence with a parked row.
        """
        if self.running is not None:
            return []
        queued = self.queue.take_ready()
        if queued is None:
            return []
        if queued.is_resumed:
            self.parked.free(queued.step.sequence)
        may_refuse = queued.step.layout != self._layers.layout or queued.has_peers
        if may_refuse and (refused := self._refused(queued)):
            return [refused, *self.begin(now_s)]
        if self.suspended.by_number or len(self.parked):
            self._refuse_parked(queued)
        self._rows.drop_gone(queued)
        if queued.has_begun:
            self._rows.go_on(queued)
        layers = self._layers.all if queued.layers is None else len(queued.layers)
        self._lost_s(now_s)  # while no step ran, copies took nothing from one
        running = self.running = SimulatedRunningStep(
            queued, layers, self._whole_s(queued), now_s, now_s, self._interrupt_times, queued.units
        )
        if queued.has_peers and isinstance(queued.step, Step):
            self._give_up_fed(running)
            if not queued.rows and not queued.is_serving:
                return [*self._end_early(now_s, running), *self.begin(now_s)]
            self._group.begin(now_s, queued.step)
        return self._until_end(running)

    def _refused(self, queued: QueuedSimStep) -> Effect | None:
        """The answer to a step that cannot begin; None if it can."""
        wrong, step = "", queued.step
        if step.layout != self._layers.layout:
            wrong = "composed for another layout"
        elif isinstance(step, Step) and not queued.has_begun:
            wrong = self._group.refusal(step)
        if wrong and queued.is_resumed and isinstance(step, Step):
            self._group.give_up(step)
            self._group.end(step)
        what = "Resume" if queued.is_resumed else "Step"
        return Send(self._instance, Unsupported(what, wrong, step=step.step)) if wrong else None

    def _whole_s(self, queued: QueuedSimStep) -> float:
        """Seconds for all of the step with the rows that it has."""
        if isinstance(queued.step, Step) and queued.step.peers:
            whole_s = self._timing.group_s(self._rows.group_work(queued.step, queued)) * self.slowness
        else:
            whole_s = self._timing.step_s(self._rows.count(queued)) * self.slowness
        return whole_s if queued.layers is None else whole_s * len(queued.layers) / self._layers.all

    def on_due(self, now_s: float, due: StepDue) -> list[Effect]:
        """End the iteration: answer it, let interrupts take effect that came too late for it, and start the next."""
        running = self.running
        if due.turn != self._turn or running is None:
            return []
        self._hold_for_copies(now_s, running)
        if running.held_s:
            held_s, running.held_s = running.held_s, 0.0
            return [After(held_s, due)]
        step = running.queued.step
        if isinstance(step, Step) and step.peers:
            late_s = self._late_s(now_s, running, step)
            running.is_waiting = late_s > 0.0 or not self._group.is_through(step, running.queued.rows)
            if self._group.lacks(step, running.queued.rows):
                return self._abandon(now_s, running)
            if running.is_waiting:
                running.wait(now_s)
                effects = self._take_effect(now_s) if self._interrupts else []
                return [*effects, After(late_s, due)] if 0.0 < late_s < inf else effects
        self.safepoints += running.safepoints
        tally = self._rows.compute(running.queued)
        effects = [self._end(now_s, tally), *self._between_steps(now_s)]
        if self._interrupts:
            return [*effects, *self._take_effect(now_s)]
        return [*effects, *self.begin(now_s)]

    def _late_s(self, now_s: float, running: SimulatedRunningStep, step: Step) -> float:
        """Seconds until the step may be through: in every layer it needs the members that began last."""
        begun_s = self._group.all_begun_s(step)
        return inf if begun_s is None else running.late_s(now_s, begun_s)

    def _hold_for_copies(self, now_s: float, running: SimulatedRunningStep) -> None:
        """Delay the end of the step by what copies took from it; too little for a delay is left for the next."""
        lost_s = self._carried_s + (0.0 if running.is_waiting else self._lost_s(now_s))
        is_much = lost_s > LEAST_DELAY * running.whole_s
        self._carried_s = 0.0 if is_much else lost_s
        if is_much:
            running.hold(lost_s)

    def look_at_peers(self, now_s: float) -> list[Effect]:
        """A peer's step is through, has ended early, or its engine was forgotten."""
        running = self.running
        if running is None or not isinstance(running.queued.step, Step) or not running.queued.step.peers:
            return []
        if running.is_waiting:
            return self.on_due(now_s, StepDue(self._turn))
        return self._abandon(now_s, running) if self._group.lacks(running.queued.step, running.queued.rows) else []

    def _abandon(self, now_s: float, running: SimulatedRunningStep) -> list[Effect]:
        """All rows leave: they cannot be computed without a peer. Interrupts that wait take effect first."""
        effects = self._take_effect(now_s) if self._interrupts else []
        if self.running is not running:
            return effects
        discard = LeavingRows(Interrupt(Verdict.DISCARD), self._sequences, self.parked, self._audit)
        discard.take_running(running.queued)
        return [*effects, *self._end_early(now_s, running), *self.begin(now_s)]

    def _end_early(self, now_s: float, running: SimulatedRunningStep) -> list[Effect]:
        self._turn += 1
        if running.queued.has_peers and isinstance(running.queued.step, Step):
            self._group.give_up(running.queued.step)
        return [self._end(now_s, _nothing(running.queued)), *self._between_steps(now_s)]

    def _give_up_fed(self, running: SimulatedRunningStep) -> None:
        """Rows that do not run write no keys: peers that need those cannot go on."""
        if running.queued.has_peers and isinstance(running.queued.step, Step):
            self._group.give_up_fed(running.queued.step, running.queued.rows)

    def is_computing(self, number: int) -> bool:
        """Whether the running step has a row of the sequence."""
        return self.running is not None and number in self.running.queued.sequences

    def progress(self, now_s: float) -> int:
        """Safepoints passed by now in steps that ended and in the running one."""
        running = self.running
        return self.safepoints + (running.passed(now_s) + running.looks(now_s) if running is not None else 0)

    def writing(self) -> list[int]:
        """The slots that the running step and queued ones write."""
        held = [*([self.running.queued] if self.running is not None else []), *self.queue.steps]
        return [slot for queued in held for slot in slots_of_rows(queued)]

    # --- rows that leave, and come back ---

    def interrupt(self, now_s: float, message: Interrupt) -> list[Effect]:
        """Take rows out: at the next safepoint of the running step, else at its end; at once where no step runs."""
        self._interrupts.append(message)
        if self.running is None or self.running.is_waiting:
            return self._take_effect(now_s)
        if len(self._interrupts) > 1:
            return []
        return self._await_safepoint(now_s, self.running)

    def at_safepoint(self, now_s: float, due: SafepointDue) -> list[Effect]:
        """The running step reached the safepoint; stale if the step ended first."""
        running = self.running
        if due.turn != self._turn or running is None:
            return []
        self._hold_for_copies(now_s, running)
        wait_s = running.wait_s(now_s, due.units)
        if not wait_s and not running.is_answering:
            running.is_answering = True
            tokens = leaving_tokens(running.queued, self._interrupts)
            running.hold(self._interrupt_times.answer_delay_s(tokens))
            wait_s = running.wait_s(now_s, due.units)
        if wait_s:  # the CPU was another's meanwhile, copies took from it, or the answer takes its time
            return [After(wait_s, due)]
        running.go_on(now_s, due.units)
        return self._take_effect(now_s)

    def resume(self, now_s: float, message: Resume) -> list[Effect]:
        """Queue parked rows as a step of a new number; rows of different places stay, and the answer says so.

        Raises:
            ContractBroken: it names no sequence, one twice, or an open one without a parked row.
        """
        if message.parked_step:
            return self._resume_step(now_s, message)
        _check_named(message)
        for number in message.sequence:
            if number in self._sequences.by_number and number not in self.parked:
                raise ContractBroken(f"step {message.step} resumes sequence {number}, of which no row is parked")
        places = self.parked.places(message.sequence)
        if len(places) > 1:
            detail = f"rows stand at {len(places)} different places"
            return [Send(self._instance, Unsupported("Resume", detail, step=message.step))]
        self.queue.append(self.parked.take(message, self._layers.layout))
        return self.begin(now_s)

    def discard(self, message: Discard) -> None:
        """Forget parked rows; nothing for sequences without one."""
        for number in message.sequence:
            self.parked.forget(number)
        queued = self.suspended.take(message.parked_step)
        if queued is not None and isinstance(queued.step, Step):
            self._group.give_up(queued.step)
            self._group.end(queued.step)

    def close_suspended(self, sequence: int) -> None:
        """The sequence is closed: suspended steps go on without its rows."""
        for queued in self.suspended.close(sequence):
            assert isinstance(queued.step, Step)
            if queued.rows or queued.is_serving:
                self._group.give_up_fed(queued.step, queued.rows)
            else:
                self._group.give_up(queued.step)

    def _resume_step(self, now_s: float, message: Resume) -> list[Effect]:
        """A suspended step goes on under a new number.

        Raises:
            ContractBroken: none is parked under that number, or rows are named beside it.
        """
        queued = self.suspended.take(message.parked_step)
        if queued is None or message.sequence or not isinstance(queued.step, Step):
            raise ContractBroken(f"step {message.step} resumes step {message.parked_step}, which is not parked")
        after = i64([*message.after, *queued.step.after])
        queued.step = replace(queued.step, step=message.step, after=after)
        queued.is_resumed = True
        self.queue.append(queued)
        return self.begin(now_s)

    def _suspend(self, now_s: float, message: Interrupt, leaving: LeavingRows) -> list[Effect]:
        """Park the step that the message names whole, if it has peers and there is room; returns its answer."""
        if not message.step or message.verdict is not Verdict.SUSPEND:
            return []
        running = self.running
        if running is None or running.queued.step.step != message.step or not running.queued.has_peers:
            queued = self.queue.with_peers(message.step)
            if queued is None or not self.suspended.park(queued):
                return []
            self.queue.steps.remove(queued)
            leaving.park(queued)
            return [self._answer(_suspended(queued), 0.0, 0.0)]
        queued = running.queued
        leaving.take_closed(queued)
        self._give_up_fed(running)
        queued.has_begun = True
        if not (queued.rows or queued.is_serving) or not self.suspended.park(queued):
            return []
        if running.is_waiting:
            queued.units = running.layers * LAYER_UNITS
        leaving.park(queued)
        self._turn += 1
        ended = [self._end(now_s, _suspended(queued)), *self._between_steps(now_s)]
        assert isinstance(queued.step, Step)
        queued.step = replace(queued.step, after=i64())
        self._group.park(queued.step)
        return ended

    def _await_safepoint(self, now_s: float, running: SimulatedRunningStep) -> list[Effect]:
        if not running.is_preemptible and not self._rows.count(running.queued).prefill_rows:
            return []  # a step that began with decode rows alone ends first
        units = running.next_safepoint(now_s)
        if units is None:
            return []
        return [After(running.wait_s(now_s, units), SafepointDue(self._turn, units))]

    def _take_effect(self, now_s: float) -> list[Effect]:
        """Let all interrupts take effect: their answers in order, then those of the steps without a row."""
        rows = len(self.running.queued.rows) if self.running is not None else 0
        answers: list[Effect] = []
        suspended: list[Effect] = []
        for message in self._interrupts:
            leaving = LeavingRows(message, self._sequences, self.parked, self._audit)
            ended = self._suspend(now_s, message, leaving)
            suspended += ended
            if not ended and self.running is not None:
                leaving.take_running(self.running.queued)
            if not ended:
                leaving.take_queued(self.queue)
            answers.append(Send(self._instance, leaving.answer()))
        self._interrupts.clear()
        answers += suspended
        if (running := self.running) is not None:
            self._give_up_fed(running)
            answers += self._compact(now_s, running, rows)
        for queued in self.queue.take_empty():
            if isinstance(queued.step, Step):
                self._group.give_up(queued.step)
            answers.append(self._answer(_nothing(queued), 0.0, 0.0))
        return [*answers, *self.begin(now_s)]

    def _compact(self, now_s: float, running: SimulatedRunningStep, rows: int) -> list[Effect]:
        """Let the running step go on with the rows that it has, of the `rows` before; or end it if it has none."""
        queued = running.queued
        if not queued.rows and not queued.is_serving:
            return self._end_early(now_s, running)
        if running.is_waiting:
            self._turn += 1
            return [After(0.0, StepDue(self._turn))]
        if len(queued.rows) < rows:
            running.whole_s = self._whole_s(queued)
        return self._until_end(running)

    def _until_end(self, running: SimulatedRunningStep) -> list[Effect]:
        self._turn += 1
        return [After(running.end_in_s, StepDue(self._turn))]

    def _end(self, now_s: float, tally: IterationResult) -> Effect:
        """The running step is over: its answer."""
        running, self.running = self.running, None
        assert running is not None
        self._sequences.step_ended()
        if running.queued.has_peers and isinstance(running.queued.step, Step):
            self.safepoints += running.looks(now_s)
            self._group.end(running.queued.step)
        compute_s = now_s - running.began_s
        self.busy_s += compute_s
        idle_s, self._idle_since_s = running.began_s - self._idle_since_s, now_s
        return self._answer(tally, compute_s, idle_s)

    def _answer(self, tally: IterationResult, compute_s: float, idle_s: float) -> Effect:
        return Send(self._instance, step_done(tally, self._vocabulary, compute_s, idle_s))

    def _refuse_parked(self, queued: QueuedSimStep) -> None:
        for number in queued.sequences:
            if number in self.parked or number in self.suspended:
                raise ContractBroken(f"step {queued.step.step} names sequence {number}, of which a row is parked")


def _nothing(queued: QueuedSimStep) -> IterationResult:
    """The result of a step whose rows all left."""
    has_peers = isinstance(queued.step, Step) and len(queued.step.peers) > 0
    return IterationResult(queued.step.step, queued.left, queued.dropped, cut_short=has_peers)


def _suspended(queued: QueuedSimStep) -> IterationResult:
    """The result of a step that is parked whole: all its rows have left it, and come back in the next."""
    result = IterationResult(queued.step.step, [*queued.left, *queued.sequences], queued.dropped)
    queued.left, queued.dropped = [], []
    return result


def _check_named(message: Resume) -> None:
    named = len(message.sequence)
    if not named or len(set(message.sequence)) != named:
        raise ContractBroken(f"step {message.step} resumes {named} sequences, {len(set(message.sequence))} different")
