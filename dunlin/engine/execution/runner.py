"""Answers the engine's commands with events; commands that it does not support with `Unsupported`.

Owns the sequences, the steps and the transfers; computes one step, or a part of it, per call of `work`. Knows no socket
and no process; its clocks are those that it is given.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.iteration import Safepoint
from dunlin.engine.decoder.layer_segments import BeginSegments
from dunlin.engine.device.pacing import HOST_PACER, Pacer
from dunlin.engine.execution.engine_layers import EngineLayers, LayerMemory
from dunlin.engine.execution.engine_transfers import EngineTransfers, OwnMemory
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.peers.lockstep import ALONE, Lockstep
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.engine.execution.step_batch import EngineShape
from dunlin.engine.execution.step_iterations import StepIterations
from dunlin.engine.execution.step_runner import StepRunner
from dunlin.engine.transfer.slab import KvSlab
from dunlin.messages.engine import (
    CancelTransfer,
    Close,
    ClosePeerRoom,
    Discard,
    Forget,
    Interrupt,
    MapHost,
    Meet,
    Open,
    Remap,
    Resume,
    Step,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import Grammar
from dunlin.structured_output.compiler import GrammarCompiler, GrammarError
from dunlin.structured_output.matcher import RejectingMatcher, TextMatcher

Event = Any


class EngineRunner:
    """One engine without its process: `receive` takes its commands, then call `work` while `busy`.

    `slots` are those of each layer held. `work_clock` tells the seconds that this thread computed, by which work is
    cut into pieces: what other processes take of the cores does not count.
    """

    def __init__(
        self,
        decoder: Decoder,
        slots: int,
        clock: Callable[[], float],
        limits: RunnerLimits | None = None,
        beat: Callable[[], object] = lambda: None,
        memory: OwnMemory | None = None,
        layers: LayerMemory | None = None,
        work_clock: Callable[[], float] = time.thread_time,
        grammars: GrammarCompiler | None = None,
        pacer: Pacer = HOST_PACER,
        begin_segments: BeginSegments | None = None,
        rows_may_leave_segments: bool = False,
        lockstep: Lockstep = ALONE,
    ) -> None:
        """`layers`: those that can change; None: the ones held are fixed. `grammars` None: no text can have one.
        `pacer`: bounds how far this thread runs ahead of what computes beside it. `begin_segments`: computes several
        layers of a small step in one piece, of decode rows alone unless `rows_may_leave_segments`. `lockstep`: keeps
        the ranks of this engine together.
        """
        self._pacer = pacer
        self._lockstep = lockstep
        self._grammars = grammars
        self._decoder = decoder
        self._limits = limits or RunnerLimits()
        self._sequences: dict[int, EngineSequence] = {}
        own = memory or OwnMemory(KvSlab(decoder.kv, [slots] * len(decoder.kv)))
        self._slab = own.slab
        self._transfers = EngineTransfers(own, self._sequences, clock, self._limits.transfers)
        self.steps = StepRunner(
            decoder,
            EngineShape(slots, len(decoder.kv)),
            clock,
            self._limits,
            self._sequences,
            self._transfers.__contains__,
            self._transfers.spoiled,
            beat,
            own.rooms,
            self._transfers.links,
            self._transfers.give_up_exchange,
            work_clock,
            StepIterations(decoder, self._limits, work_clock, begin_segments, rows_may_leave_segments),
            pacer,
            self._may_run_ahead,
        )
        self.layers = (
            None
            if layers is None
            else EngineLayers(layers, own, self._sequences, self.steps, self._transfers, clock, beat)
        )
        self._handlers: dict[type[Any], Callable[[Any], list[Event]]] = {
            Open: self._on_open,
            Close: self._on_close,
            Step: self.steps.on_step,
            Transfer: self._on_transfer,
            CancelTransfer: self._transfers.on_cancel,
            MapHost: self._transfers.on_map_host,
            Meet: self._transfers.on_meet,
            Forget: self._transfers.on_forget,
            ClosePeerRoom: self._transfers.on_close_room,
            Interrupt: lambda message: self._transfers.with_steps(self.steps.on_interrupt(message)),
            Resume: self.steps.on_resume,
            Discard: self._on_discard,
            Remap: self._on_remap,
        }

    def __repr__(self) -> str:
        return f"[sequences: {len(self._sequences)} | steps: {len(self.steps)} | transfers: {len(self._transfers)}]"

    @property
    def busy(self) -> bool:
        """Whether `work` has something to do."""
        return len(self.steps) > 0 or self._transfers.has_work or (self.layers is not None and self.layers.busy)

    @property
    def is_waiting(self) -> bool:
        """Whether the running step can go on only when a peer has sent something."""
        return self.steps.is_waiting

    def receive(self, message: Any) -> list[Event]:
        """Take a command in; returns the events that answer it at once."""
        handler = self._handlers.get(type(message))
        return handler(message) if handler else [Unsupported(type(message).__name__, "not a command of an engine")]

    @torch.inference_mode()
    def work(self, safepoint: Safepoint) -> list[Event]:
        """Compute: chunks of the most urgent transfers, then one step that is ready, with more chunks between its
        pieces.

        Ends early where `safepoint` returns something true, or a transfer ended: what has arrived is to be received,
        and `work` called again goes on there.
        """
        if self._lockstep.is_alone and self.steps.wait_ahead():
            return []
        is_between = self.steps.is_ahead or not self.steps.is_running
        changed = [] if self.layers is None or self.steps.is_running else self.layers.work()
        if not len(self.steps):
            return [*changed, *self._transfers.work_idle()]
        before = self._transfers.work_before_step(self.steps.last_step_s) if is_between else []
        self._lockstep.begin_turn(before)
        self._transfers.step_goes_on()
        landed: list[Event] = []

        def copy_and_look() -> object:
            self._pacer.pace(self.steps.layers_left)
            self._write_behind()
            landed.extend(self._transfers.work_at_safepoint())
            if self.layers is not None:
                landed.extend(self.layers.work_at_safepoint())
            return self._lockstep.passed(bool(safepoint() or landed))

        answers = self.steps.work(copy_and_look)
        self._lockstep.end_turn()
        return [*changed, *before, *landed, *(self._transfers.with_steps(answers) if len(self._transfers) else answers)]

    def land_as(self, done: TransferDone) -> None:
        """A transfer that another rank copies for all has ended so."""
        self._transfers.land_as(done)

    def _may_run_ahead(self) -> bool:
        """Whether nothing waits for a moment in which no step runs."""
        return self._lockstep.agree(not self._transfers.has_work and (self.layers is None or not self.layers.busy))

    def _write_behind(self) -> None:
        """Layers that the running step has finished may be copied."""
        progress = self.steps.progress
        if progress is not None and len(self._transfers):
            self._transfers.layers_written(*progress)

    def _on_open(self, message: Open) -> list[Event]:
        positions = self._decoder.config.max_positions
        vocabulary = self._decoder.config.vocab
        if len(self._sequences) >= self._limits.sequences:
            return [Unsupported("Open", f"more than {self._limits.sequences} sequences")]
        if message.sequence in self._sequences:
            return [Unsupported("Open", f"sequence {message.sequence} is open already")]
        if not 0 < len(message.tokens) <= positions:
            return [Unsupported("Open", f"{len(message.tokens)} tokens, the model takes 1 to {positions}")]
        if min(message.tokens) < 0 or max(message.tokens) >= vocabulary:
            return [Unsupported("Open", f"a token outside the vocabulary of {vocabulary}")]
        wrong = _wrong_extents(message, max(self._slab.slots))
        if wrong:
            return [Unsupported("Open", wrong)]
        adapter = self._decoder.adapters.number_of(message.adapter)
        if adapter is None:
            return [Unsupported("Open", f"no adapter of digest {message.adapter} is loaded")]
        layers, matcher = len(self._decoder.kv), self._matcher(message.sampling.grammar)
        opened = self._sequences[message.sequence] = EngineSequence(message, positions, layers, matcher, adapter)
        if min(self._slab.slots) < opened.slots.length:
            opened.keep_kv_within(self._slab.slots)
        return []

    def _matcher(self, grammar: Grammar | None) -> TextMatcher | None:
        """A door has compiled the grammar before: where that fails here, the text has no valid next token."""
        if grammar is None:
            return None
        try:
            if self._grammars is not None:
                return self._grammars.matcher(grammar)
        except GrammarError as error:
            print(f"dunlin engine: a grammar cannot be compiled: {error}", file=sys.stderr, flush=True)
        return RejectingMatcher(self._decoder.config.vocab)

    def _on_close(self, message: Close) -> list[Event]:
        self._sequences.pop(message.sequence, None)
        self.steps.forget(message.sequence)
        self._transfers.forget(message.sequence)
        return []

    def _on_discard(self, message: Discard) -> list[Event]:
        self.steps.discard(message)
        return []

    def _on_remap(self, message: Remap) -> list[Event]:
        if self.layers is None:
            return [Unsupported("Remap", "the layers held are fixed", layout=message.layout)]
        return self.layers.on_remap(message)

    def _on_transfer(self, message: Transfer) -> list[Event]:
        return self._transfers.add(message, is_written=not (message.step and self.steps.is_unanswered(message.step)))


def _wrong_extents(opened: Open, slots: int) -> str:
    """The fault of the named slots of the first tokens' KV; empty if there is none."""
    if len(opened.extent_start) != len(opened.extent_length):
        return "extent columns of different lengths"
    held = 0
    for start, length in zip(opened.extent_start, opened.extent_length, strict=True):
        if start < -1 or length <= 0 or (start >= 0 and start + length > slots):
            return f"an extent of {length} slots from {start} in a slab of {slots}"
        held += length
    return f"{held} slots for {len(opened.tokens)} tokens" if held > len(opened.tokens) else ""
