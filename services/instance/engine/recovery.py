"""Recovery from a lost engine: whether its KV is still valid, and how the sequences continue in the next engine.

The arena outlives the engine. A sequence keeps its slots and continues after the last answered step, unless the way the
engine ended makes the content of the KV cache doubtful. Knows no process; `EngineExited` says how the engine ended.
"""

from dataclasses import dataclass, replace

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.dispatch import Returned
from dunlin.messages.engine import EngineExited, EngineReady
from dunlin.messages.types import Figure, RejectedOption, Why, i32
from services.instance.config import RecoveryConfig
from services.instance.kv.config import KvCacheConfig
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.kv_cache import KvCache
from services.instance.kv.residency import SlotUse
from services.instance.kv.whole_regions import all_layers
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence import crash_suspects
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable

CRASH_SIGNALS = {3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}
"""Signals of a fault in the process itself, which may have written anywhere before."""
MAX_ENGINES_LOST = 3
"""Engines in a row that a sequence may lose in its steps without one being answered, before another runs it."""


@dataclass(frozen=True, slots=True)
class EngineGraceOver:
    """The next engine should have been ready by now; `loss` says after which one's end."""

    loss: int


def is_kv_trusted(exited: EngineExited | None) -> bool:
    """Whether the KV of the answered steps is valid: not after a wild write, and not when the end is unknown."""
    return exited is not None and (exited.ended_by_us or exited.signal not in CRASH_SIGNALS)


def may_be_request_fault(exited: EngineExited | None) -> bool:
    """Whether a request of its step may have ended the engine: by a crash signal, or an unrequested exit."""
    if exited is None or exited.ended_by_us:
        return False
    return exited.signal in CRASH_SIGNALS or exited.code != 0


def _is_same_memory(one: EngineReady, other: EngineReady) -> bool:
    """Whether KV of the one lies in the other where it lay. Which layers are held may differ, and with it the slots."""
    layers = all_layers(one)
    is_whole = one.layers == other.layers == i32(layers)
    names = [
        replace(each, agent=b"", layers=i32(), slots=each.slots if is_whole else 0, layout=0, model_layers=len(layers))
        for each in (one, other)
    ]
    return names[0] == names[1] and layers == all_layers(other)


class EngineRecovery:
    """Continues sequences in the next engine. `revived_tokens_total` counts tokens whose KV was still valid."""

    def __init__(
        self,
        engine: Address,
        config: RecoveryConfig,
        kv_cache: KvCacheConfig,
        max_running: int,
        sequences: SequenceTable,
        lifecycle: SequenceLifecycle,
        steps: StepLedger,
        host_cache: HostCacheClient,
    ) -> None:
        self.revived_tokens_total = 0
        self._engine = engine
        self._config = config
        self._kv_cache = kv_cache
        self._max_running = max_running
        self._sequences = sequences
        self._lifecycle = lifecycle
        self._steps = steps
        self._host_cache = host_cache
        self._exited: EngineExited | None = None
        self._last_engine: EngineReady | None = None
        self._trusted_engine: EngineReady | None = None  # the engine whose KV is valid
        self._losses = 0
        self._is_waiting = False
        self._reason = ""

    @property
    def may_blame_requests(self) -> bool:
        """Whether the engine that is being lost may have ended by the fault of a request in its step."""
        return may_be_request_fault(self._exited)

    def on_engine_exited(self, message: EngineExited) -> None:
        """Record how the engine ended; its loss is reported next."""
        self._exited = message
        if not is_kv_trusted(message):
            self._trusted_engine = None  # also where it was never ready: it had the arena mapped all the same

    def on_engine_lost(self, reason: str) -> list[Effect]:
        """The engine was ready and is gone: hold what can go on, stop poison, and wait for the next one if it pays."""
        exited, self._exited = self._exited, None
        self._losses += 1
        self._is_waiting, self._reason = True, reason
        trusted = is_kv_trusted(exited)
        poison = crash_suspects.blame_crash(self._steps.executing_rows()) if may_be_request_fault(exited) else []
        hung = [sequence for sequence, _ in self._steps.executing_rows() if self._lost_too_many(sequence)]
        self._steps.clear()
        self._trusted_engine = self._trusted_engine if trusted else None
        effects = self._host_cache.on_engine_lost()
        for sequence in self._sequences.by_arrival():
            effects += self._roll_back(sequence, trusted)
        for sequence in poison:
            effects += [self._lifecycle.say_poisoned(sequence), *self._lifecycle.end(sequence)]
        for sequence in hung:
            effects += self._return(sequence, f"{MAX_ENGINES_LOST} engines in a row were lost in its steps")
        back_in_s = exited.back_in_s if exited is not None else 0.0
        if back_in_s > self._config.engine_grace_s:
            return effects + self._return_all(back_in_s)
        return [*effects, After(self._config.engine_grace_s, EngineGraceOver(self._losses))]

    def on_engine_ready(self, ready: EngineReady) -> list[Effect]:
        """An engine can take steps: sequences with slots continue in it, if their KV is still valid."""
        self._is_waiting, self._exited = False, None
        effects: list[Effect] = []
        if self._last_engine is not None and ready.weights_digest != self._last_engine.weights_digest:
            for sequence in self._sequences:
                effects += self._host_cache.truncate(sequence)
        if not self._keeps_kv(ready):
            for sequence in self._with_slots():
                self._lifecycle.discard_kv(sequence)
            self._lifecycle.kv_cache = KvCache(
                self._capacity(ready), ready.weights_digest if self._kv_cache.prefix_caching else None
            )
        self._last_engine = self._trusted_engine = ready
        effects += self._host_cache.on_engine_ready(ready)
        for sequence in self._with_slots():
            effects += self._resume(sequence)
        return effects

    def on_layers_changed(self, ready: EngineReady) -> None:
        """The engine has other layers or slots; its KV is where it was."""
        self._last_engine = self._trusted_engine = ready
        self._lifecycle.slot_table.resize(self._capacity(ready))

    def _keeps_kv(self, ready: EngineReady) -> bool:
        """Whether the KV of the engine before is valid in this one. The capacity is this one's then: a change of layers
        may have been under way.
        """
        before, slots = self._trusted_engine, self._lifecycle.slot_table
        if before is None or not _is_same_memory(ready, before) or slots.owners_beyond(self._capacity(ready)):
            return False
        slots.resize(self._capacity(ready))
        return True

    def _capacity(self, ready: EngineReady) -> int:
        return min(ready.slots, self._kv_cache.max_slots or ready.slots)

    @handles
    def on_grace_over(self, now_s: float, sender: Address, due: EngineGraceOver) -> list[Effect]:
        """No engine was ready in time: return every sequence to its dispatcher, for other instances."""
        if not self._is_waiting or due.loss != self._losses:
            return []
        return self._return_all(self._config.engine_grace_s)

    def _roll_back(self, sequence: Sequence, trusted: bool) -> list[Effect]:
        """Reset the sequence to its last answered step or completed move; no step and no move is outstanding. What
        becomes of a group's is its leader's to say.
        """
        if sequence.is_spread:
            return []
        sequence.in_steps = sequence.in_moves = sequence.pending = 0
        if sequence.state is SequenceState.WAITING:
            return []
        self._host_cache.cancel_requests(sequence)
        if sequence.state is SequenceState.ENDING:
            return self._lifecycle.end(sequence)
        if not trusted or sequence.state is SequenceState.RESTORING or self._has_lost_its_row(sequence):
            self._lifecycle.discard_kv(sequence)
        elif self._lifecycle.kv_cache.held_positions(sequence):
            sequence.issued = sequence.valid
            self._lifecycle.kv_cache.set_use(sequence, SlotUse.OWNED)
            if sequence.state not in (SequenceState.RUNNING, SequenceState.LEAVING):
                self._sequences.transition(sequence, SequenceState.RUNNING)
        return []

    def _has_lost_its_row(self, sequence: Sequence) -> bool:
        """Whether it was being preempted, and others have all rows by now."""
        is_preempted = sequence.state in (SequenceState.DRAINING, SequenceState.ASKING, SequenceState.SPILLING)
        return is_preempted and self._sequences.taken_rows >= self._max_running

    def _with_slots(self) -> list[Sequence]:
        """The sequences with slots, in order of arrival."""
        return [
            sequence for sequence in self._sequences.by_arrival() if self._lifecycle.kv_cache.held_positions(sequence)
        ]

    def _resume(self, sequence: Sequence) -> list[Effect]:
        """Open the sequence in the new engine; one that migrates out too, since its migration may be aborted."""
        tokens = sequence.valid
        opened = self._lifecycle.open_in_engine(sequence)
        if sequence.state is SequenceState.LEAVING:
            return [opened]
        self.revived_tokens_total += tokens
        sequence.preempted = False
        figures = (Figure("revived_tokens", tokens), Figure("engines_lost", self._losses))
        why = Why("engine lost", f"go on in the next engine ({self._reason})", figures)
        return [opened, self._lifecycle.say_continued(sequence, why, revived=tokens)]

    def _lost_too_many(self, sequence: Sequence) -> bool:
        """Count one more engine lost in its steps; True beyond the limit, False for ending and poison sequences."""
        sequence.engines_lost += 1
        is_over = sequence.state is SequenceState.ENDING or crash_suspects.is_poison(sequence)
        return sequence.engines_lost >= MAX_ENGINES_LOST and not is_over

    def _return_all(self, wait_s: float) -> list[Effect]:
        rejected = RejectedOption(
            "wait for the next engine", f"{wait_s:.3g} s are more than {self._config.engine_grace_s:g}"
        )
        effects: list[Effect] = []
        for sequence in self._sequences.by_arrival():
            if not sequence.is_spread:
                effects += self._return(sequence, self._reason, rejected)
        return effects

    def _return(self, sequence: Sequence, reason: str, *rejected: RejectedOption) -> list[Effect]:
        place = sequence.place
        figures = (Figure("sequences", len(self._sequences)), Figure("engines_lost", self._losses))
        why = Why("engine lost", reason, figures, rejected)
        self._host_cache.cancel_requests(sequence)
        said = Returned(place.request, place.attempt, why, sequence.suspicion)
        return [Send(sequence.dispatcher, said), *self._lifecycle.end(sequence)]
