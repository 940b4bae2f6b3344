"""This instance's engine as its core sees it: whether it is ready, what it answers, and what its end means.

Knows no dispatcher's queue, no batch and no stream; the transitions of a sequence are `lifecycle.py`'s.
"""

from collections.abc import Callable

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect, Send
from dunlin.messages.engine import (
    EngineExited,
    EngineFailed,
    EngineProgress,
    EngineReady,
    EngineStarted,
    Interrupted,
    StepDone,
    StopEngine,
    Unsupported,
)
from dunlin.messages.lifecycle import MissCause
from dunlin.messages.types import Figure, RejectedOption, Why
from services.instance.config import EngineWatchConfig
from services.instance.engine.layer_changes import LayerChanges
from services.instance.engine.recovery import EngineRecovery
from services.instance.engine.watchdog import EngineWatchdog
from services.instance.kv.host_cache import HostCacheClient
from services.instance.objectives.misses import ObjectiveMisses
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.prompt_scores import score_messages
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.step_outcome import StepOutcome
from services.instance.scheduling.token_messages import steady_token_messages, token_messages
from services.instance.sequence import crash_suspects
from services.instance.sequence.finished_answers import FinishedAnswers
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import WANTS_TOKENS, SequenceState
from services.instance.sequence.table import SequenceTable


class EngineClient:
    """Owns the engine's state: `ready` is None while none can take a step. `stale_total` counts late answers.

    `incarnation`: the newest engine heard; earlier ones are over. `misses` are the late tokens among its answers.
    `on_group_step(answer)` takes the answers to the steps of a group.
    """

    def __init__(
        self,
        engine: Address,
        config: EngineWatchConfig,
        sequences: SequenceTable,
        lifecycle: SequenceLifecycle,
        steps: StepLedger,
        host_cache: HostCacheClient,
        finished_answers: FinishedAnswers,
        recovery: EngineRecovery,
        layer_changes: LayerChanges,
        misses: ObjectiveMisses,
        on_group_step: Callable[[StepDone | Unsupported], list[Effect]],
    ) -> None:
        self.ready: EngineReady | None = None
        self.pid = 0
        self.incarnation = 0
        self.restarts_total = 0
        self.stale_total = 0
        self._ended = 0
        self._engine = engine
        self._sequences = sequences
        self._lifecycle = lifecycle
        self._steps = steps
        self._host_cache = host_cache
        self._finished_answers = finished_answers
        self._recovery = recovery
        self._layer_changes = layer_changes
        self.misses = misses
        self._on_group_step = on_group_step
        self._watchdog = EngineWatchdog(config.stuck_s, config.least_stuck_s)
        self._load_watchdog = EngineWatchdog(config.load_stuck_s, config.load_stuck_s)

    @property
    def safepoints(self) -> int:
        """Safepoints passed, as last read."""
        return self._watchdog.safepoints

    @property
    def outstanding(self) -> int:
        """Steps, interrupts, moves and changes of layers that it has not answered. Parked rows are none: an engine may
        rest with them.
        """
        return self._steps.unanswered + self._host_cache.outstanding + self._layer_changes.outstanding

    def is_stale(self, engine: Address) -> bool:
        """Whether an event is of an engine that is over: it changes nothing, and is counted.

        Incarnation 0 stands for the engine's host, whose words (its start, its end, its stream) come in order.
        """
        if not engine.incarnation or (engine.incarnation > self._ended and engine.incarnation >= self.incarnation):
            self.incarnation = max(self.incarnation, engine.incarnation)
            return False
        self.stale_total += 1
        return True

    @handles
    def on_engine_exited(self, now_s: float, sender: Address, message: EngineExited) -> list[Effect]:
        """The engine's process ended. What it said may yet come, before the next one's first word: it is over."""
        self._ended = max(self._ended, message.incarnation)
        self._recovery.on_engine_exited(message)
        return []

    def on_stream_ended(self) -> None:
        """The engine's stream ended, perhaps without a word how its process did: it is over."""
        self._ended = max(self._ended, self.incarnation)

    @handles
    def on_engine_started(self, now_s: float, sender: Address, message: EngineStarted) -> list[Effect]:
        """The engine's process has started and loads."""
        self.pid = message.pid
        return []

    @handles
    def failed(self, now_s: float, sender: Address, message: EngineFailed) -> list[Effect]:
        """The engine exits: `EngineExited` and the loss of the engine follow."""
        return []

    def on_engine_ready(self, ready: EngineReady) -> list[Effect]:
        """The engine can take steps."""
        self.ready = ready
        self._watchdog.on_engine_ready()
        return [*self._recovery.on_engine_ready(ready), *self._layer_changes.on_engine_ready(ready)]

    def on_layers_changed(self, ready: EngineReady) -> None:
        """The engine has other layers or slots: `ready` is what it would say of itself now."""
        self.ready = ready
        self._recovery.on_layers_changed(ready)

    def on_engine_lost(self, reason: str) -> list[Effect]:
        """The engine was ready and is lost."""
        self.ready = None
        self.restarts_total += 1
        self._layer_changes.on_engine_lost()
        effects = self._recovery.on_engine_lost(reason)
        self._sequences.on_engine_lost()
        return effects

    @handles
    def on_step_done(self, now_s: float, sender: Address, done: StepDone) -> list[Effect]:
        """The answer to a step: token messages to the dispatchers, and the transitions of each sequence."""
        if not self._steps.is_outstanding(done.step):
            self.stale_total += 1
            return []
        if self._steps.is_group_step(done.step):
            self._steps.complete_group_step(now_s, done)
            return self._on_group_step(done)
        timing = self._steps.forecast.on_done(now_s, done)
        answer, more = self._steps.complete(done), self._steps.forecast.learnt()
        if answer.is_plain_decode(self._sequences.running):  # no sequence changes its state
            more += self.misses.on_repeated(timing, self._sequences.running)
            return [*steady_token_messages(answer), *more] if more else steady_token_messages(answer)
        more += self.misses.on_step(timing, answer.rows, answer.sampled, answer.left)
        effects = [*score_messages(answer), *token_messages(answer), *more]
        for sequence in answer.rows:
            is_over = sequence in answer.finishes or sequence in answer.dropped or sequence in answer.failed
            if is_over or not sequence.is_plain_decode:
                effects += self._update_sequence(now_s, answer, sequence)
        return effects

    @handles
    def on_interrupted(self, now_s: float, sender: Address, message: Interrupted) -> list[Effect]:
        """The answer to an interrupt: the rows that left are parked, or rolled back."""
        if not self._steps.is_interrupt(message.ticket):
            self.stale_total += 1
            return []
        effects: list[Effect] = []
        for sequence in self._steps.on_interrupted(message):
            sequence.blame(MissCause.INTERRUPTED)
            effects += self._lifecycle.on_rows_left(sequence)
        return effects

    def on_unsupported(self, now_s: float, sender: Address, message: Unsupported) -> list[Effect]:
        """The engine refused a command and goes on; one that this core did not give ends it: their states differ.

        Rows of a sequence that it did not open are dropped, and it goes back then.
        """
        if self._steps.is_group_step(message.step):
            self._steps.refuse_group_step(message.step)
            return self._on_group_step(message)
        if self._steps.is_outstanding(message.step):
            return self._return_refused(message)
        if message.what == "Interrupt" and self._steps.is_interrupt(message.ticket):
            return self.on_interrupted(now_s, sender, Interrupted(ticket=message.ticket))
        if message.what == "Remap":
            return self._layer_changes.on_unsupported(message)
        if message.what == "Open":
            return []
        if self.ready is None:
            self.stale_total += 1
            return []
        rejected = RejectedOption("go on", f"{message.what}: {message.detail}")
        return [Send(self._engine, StopEngine(Why("engine contract", "end the engine", (), (rejected,))))]

    @handles
    def on_progress(self, now_s: float, sender: Address, progress: EngineProgress) -> list[Effect]:
        """Check the safepoint counter; stop an engine that is stuck."""
        loads = self.ready is None and self.pid > 0
        stuck = self._load_watchdog.check(now_s, progress.safepoints, int(loads))
        why = self._watchdog.check(now_s, progress.safepoints, self.outstanding) or stuck
        return [Send(self._engine, StopEngine(why))] if why is not None else []

    def _return_refused(self, message: Unsupported) -> list[Effect]:
        """Roll the rows of a refused step back and return their sequences: another instance may be able to run them."""
        effects: list[Effect] = []
        for sequence in self._steps.refuse(message.step):
            if sequence.state is SequenceState.ENDING:
                effects += self._lifecycle.complete_deferred(sequence)
                continue
            rejected = RejectedOption("run it here", f"{message.what}: {message.detail}")
            why = Why("engine contract", "the engine refuses the step", (Figure("step", message.step),), (rejected,))
            effects += self._lifecycle.return_to_dispatcher(sequence, why)
        return effects

    def _update_sequence(self, now_s: float, answer: StepOutcome, sequence: Sequence) -> list[Effect]:
        effects: list[Effect] = []
        crash_suspects.clear_if_past_crash(sequence)
        if sequence.state in WANTS_TOKENS:
            finish = answer.finishes.get(sequence)
            if finish is not None:
                self._finished_answers.store(now_s, sequence, finish)
                effects += self._lifecycle.stop(sequence)
            elif sequence in answer.failed:
                effects += self._lifecycle.fail(sequence)
            elif sequence in answer.dropped:
                step = Figure("step", answer.done.step)
                why = Why("engine contract", "the engine does not know the sequence", (step,))
                effects += self._lifecycle.return_to_dispatcher(sequence, why)
            elif sequence.valid <= len(sequence.place.tokens):  # its prompt, or a chunk of it, was computed
                self._lifecycle.kv_cache.share_prefix(sequence, sequence.valid)
        return effects + self._lifecycle.complete_deferred(sequence)
