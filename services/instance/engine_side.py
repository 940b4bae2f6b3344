"""This instance's engine as its core sees it: whether it is ready, what it answers, and what its end means.

Knows no dispatcher's queue, no batch and no stream; what a sequence's turn is, `lives.py` knows.
"""

from dunlin.effects import Address, Effect, Send
from dunlin.handlers import handles
from dunlin.messages.engine import (
    EngineFailed,
    EngineReady,
    EngineStarted,
    Progress,
    StepDone,
    StopEngine,
    Unsupported,
)
from dunlin.messages.types import Figure, Rejected, Why
from services.instance import suspects
from services.instance.config import EngineWatchConfig
from services.instance.delivery import decoded, deliveries
from services.instance.lives import Lives
from services.instance.retained import Retained
from services.instance.revival import Revival
from services.instance.sequences import LIVES_ON, Sequence, Sequences
from services.instance.steps import Answer, Steps
from services.instance.tier import HostTier
from services.instance.watch import EngineWatch


class EngineSide:
    """Owns the engine's state: `ready` is None while none can take a step. `stale_total` counts late answers."""

    def __init__(
        self,
        engine: Address,
        config: EngineWatchConfig,
        sequences: Sequences,
        lives: Lives,
        steps: Steps,
        tier: HostTier,
        retained: Retained,
        revival: Revival,
    ) -> None:
        self.ready: EngineReady | None = None
        self.pid = 0
        self.restarts_total = 0
        self.stale_total = 0
        self._engine = engine
        self._sequences = sequences
        self._lives = lives
        self._steps = steps
        self._tier = tier
        self._retained = retained
        self._revival = revival
        self._watch = EngineWatch(config.stuck_s)
        self._load_watch = EngineWatch(config.load_stuck_s)

    @property
    def safepoints(self) -> int:
        """Safepoints passed, as last read."""
        return self._watch.safepoints

    @property
    def outstanding(self) -> int:
        """Steps and moves that it has not answered."""
        return self._steps.outstanding + self._tier.moves

    @handles
    def started(self, now_s: float, sender: Address, message: EngineStarted) -> list[Effect]:
        """Its process runs, and loads."""
        self.pid = message.pid
        return []

    @handles
    def failed(self, now_s: float, sender: Address, message: EngineFailed) -> list[Effect]:
        """It exits now: how, and that it is gone, is said next."""
        return []

    def becomes_ready(self, ready: EngineReady) -> list[Effect]:
        """It can take steps."""
        self.ready = ready
        return self._revival.becomes_ready(ready)

    def lost(self, reason: str) -> list[Effect]:
        """It was ready and is gone."""
        self.ready = None
        self.restarts_total += 1
        return self._revival.lost(reason)

    @handles
    def answered(self, now_s: float, sender: Address, done: StepDone) -> list[Effect]:
        """A step's answer: tokens to those who wait for them, and what follows for each sequence."""
        if not self._steps.has(done.step):
            self.stale_total += 1
            return []
        answer = self._steps.take(done)
        if answer.is_steady(self._sequences.running):
            return decoded(answer)  # nobody's turn has come
        effects = deliveries(answer)
        for sequence in answer.rows:
            is_over = sequence in answer.finishes or sequence in answer.dropped or sequence in answer.failed
            if is_over or not sequence.is_steady:
                effects += self._settle(now_s, answer, sequence)
        return effects

    def refuses(self, message: Unsupported) -> list[Effect]:
        """An engine that refuses what it was asked to do no longer agrees with this core about what is where."""
        rejected = Rejected("go on", f"{message.what}: {message.detail}")
        return [Send(self._engine, StopEngine(Why("engine contract", "end the engine", (), (rejected,))))]

    @handles
    def progressed(self, now_s: float, sender: Address, progress: Progress) -> list[Effect]:
        """The counter as it is now: end an engine that is stuck."""
        loads = self.ready is None and self.pid > 0
        stuck = self._load_watch.look(now_s, progress.safepoints, int(loads))
        why = self._watch.look(now_s, progress.safepoints, self.outstanding) or stuck
        return [Send(self._engine, StopEngine(why))] if why is not None else []

    def _settle(self, now_s: float, answer: Answer, sequence: Sequence) -> list[Effect]:
        effects: list[Effect] = []
        suspects.passed(sequence)
        if sequence.state in LIVES_ON:
            finish = answer.finishes.get(sequence)
            if finish is not None:
                self._retained.keep(now_s, sequence, finish)
                effects += self._lives.stop(sequence)
            elif sequence in answer.failed:
                effects += self._lives.fail(sequence)
            elif sequence in answer.dropped:
                step = Figure("step", answer.done.step)
                why = Why("engine contract", "the engine does not know the sequence", (step,))
                effects += self._lives.give_back(sequence, why)
            elif sequence.answered <= len(sequence.place.tokens):  # its prompt, or a chunk of it, was computed
                self._lives.slab.donate(sequence, sequence.answered)
        return effects + self._lives.settle(sequence)
