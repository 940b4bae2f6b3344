"""Answers the engine's commands with events; commands that it does not support with `Unsupported`.

Owns the sequences, the queue of steps and the moves; computes one iteration per call of `work`. Knows no socket and no
process; its only clock is the one it is given.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.iteration import Safepoint
from dunlin.engine.execution.kv_mover import HostMapping, KvMover
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.engine.execution.step_batch import EngineShape
from dunlin.engine.execution.step_runner import StepRunner
from dunlin.messages.engine import (
    CancelTransfer,
    Close,
    Discard,
    Interrupt,
    MapHost,
    Open,
    Remap,
    Resume,
    Step,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import TransferKind, TransferStatus

Event = Any
HOST_KINDS = (TransferKind.SLAB_TO_HOST, TransferKind.HOST_TO_SLAB)


class EngineRunner:
    """One engine without its process. Feed `receive`, then call `work` while `busy`."""

    def __init__(
        self,
        decoder: Decoder,
        slots: int,
        clock: Callable[[], float],
        limits: RunnerLimits | None = None,
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        self._decoder = decoder
        self._slots = slots
        self._clock = clock
        self._limits = limits or RunnerLimits()
        self._sequences: dict[int, EngineSequence] = {}
        self._tier = HostMapping()
        self._mover = KvMover(decoder.kv, slots, self._tier, clock)
        # Moves that did not land, by number, with the sequence whose rows must not run on them.
        self._failed: dict[int, int] = {}
        self.steps = StepRunner(
            decoder,
            EngineShape(slots, len(decoder.kv)),
            clock,
            self._limits,
            self._sequences,
            self._mover.__contains__,
            self._spoiled,
            beat,
        )
        self._handlers: dict[type[Any], Callable[[Any], list[Event]]] = {
            Open: self._on_open,
            Close: self._on_close,
            Step: self.steps.on_step,
            Transfer: self._on_move,
            CancelTransfer: self._on_cancel_move,
            MapHost: self._on_map_host,
            Interrupt: self.steps.on_interrupt,
            Resume: self.steps.on_resume,
            Discard: self._on_discard,
            Remap: lambda message: [Unsupported("Remap", "the layers held are fixed", layout=message.layout)],
        }

    def __repr__(self) -> str:
        return f"[sequences: {len(self._sequences)} | steps: {len(self.steps)} | moves: {len(self._mover)}]"

    @property
    def busy(self) -> bool:
        """Whether `work` has something to do."""
        return len(self.steps) > 0 or len(self._mover) > 0

    def receive(self, message: Any) -> list[Event]:
        """Take a command in; returns the events that answer it at once."""
        handler = self._handlers.get(type(message))
        return handler(message) if handler else [Unsupported(type(message).__name__, "not a command of an engine")]

    @torch.inference_mode()
    def work(self, safepoint: Safepoint) -> list[Event]:
        """Compute: layers of the most urgent moves, then one step that is ready.

        Ends early where `safepoint` returns something true: what has arrived is to be received, and `work` called
        again goes on there.
        """
        events = [] if self.steps.is_running else self._advance_moves(safepoint)
        return events + self.steps.work(safepoint)

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
        wrong = _wrong_extents(message, self._slots)
        if wrong:
            return [Unsupported("Open", wrong)]
        self._sequences[message.sequence] = EngineSequence(message, positions, len(self._decoder.kv))
        return []

    def _on_close(self, message: Close) -> list[Event]:
        self._sequences.pop(message.sequence, None)
        self.steps.forget(message.sequence)
        self._failed = {move: sequence for move, sequence in self._failed.items() if sequence != message.sequence}
        return []

    def _on_discard(self, message: Discard) -> list[Event]:
        self.steps.discard(message.sequence)
        return []

    def _on_move(self, message: Transfer) -> list[Event]:
        if message.kind not in HOST_KINDS:
            return [Unsupported("Transfer", "only between slab and host tier", ticket=message.ticket)]
        if len(self._mover) >= self._limits.moves:
            return [Unsupported("Transfer", f"{self._limits.moves} moves are queued", ticket=message.ticket)]
        self._mover.add(message)
        return []

    def _on_cancel_move(self, message: CancelTransfer) -> list[Event]:
        ended = self._mover.cancel(message.ticket)
        return [] if ended is None else [self._land(*ended)]

    def _on_map_host(self, message: MapHost) -> list[Event]:
        try:
            self._tier.map(message)
        except (OSError, ValueError) as error:
            return [Unsupported("MapHost", f"{message.path} of {message.size_bytes} bytes: {error}")]
        return []

    def _advance_moves(self, safepoint: Safepoint) -> list[Event]:
        """Advance moves; small regions move whole: the target of a migration waits for a sequence's last region."""
        events: list[Event] = []
        if not len(self._mover):
            return events
        until_bytes = self._mover.copied_bytes + self._limits.copied_bytes
        until_s = self._clock() + self._limits.copy_share * self.steps.last_step_s
        while len(self._mover) and (self._mover.copied_bytes < until_bytes or self._clock() < until_s):
            ended = self._mover.advance()
            safepoint()
            events += [] if ended is None else [self._land(*ended)]
        return events

    def _land(self, move: Transfer, done: TransferDone) -> TransferDone:
        """A region that came back belongs to its sequence from now on; one that did not stops the rows that wait for
        it.
        """
        if move.kind is not TransferKind.HOST_TO_SLAB:
            return done
        if done.status is TransferStatus.OK:
            done = self._adopt(move, done)
        if done.status is not TransferStatus.OK and move.sequence in self._sequences:
            self._failed[move.ticket] = move.sequence
        return done

    def _adopt(self, move: Transfer, done: TransferDone) -> TransferDone:
        if move.sequence == 0:
            return done  # no sequence has it yet: a later `Open` names the slots
        state = self._sequences.get(move.sequence)
        if state is None:
            return _failed(done, f"sequence {move.sequence} is not open")
        if (move.region.layer_start, move.region.layer_stop) != (0, len(self._decoder.kv)):
            return done
        position = move.region.start
        try:
            for start, length in zip(move.extent_start, move.extent_length, strict=True):
                state.slots.assign(position, start, length)
                position += length
        except ValueError as error:
            return _failed(done, str(error))
        state.valid.limit(move.region.start)
        state.valid.set(range(len(self._decoder.kv)), position)
        return done

    def _spoiled(self, transfers: Sequence[int]) -> set[int]:
        """The sequences whose KV these transfers failed to bring."""
        return {self._failed[transfer] for transfer in transfers if transfer in self._failed}


def _wrong_extents(opened: Open, slots: int) -> str:
    """The fault of the named slots of the first tokens' KV; empty if there is none."""
    if len(opened.extent_start) != len(opened.extent_length):
        return "extent columns of different lengths"
    held = 0
    for start, length in zip(opened.extent_start, opened.extent_length, strict=True):
        if start < 0 or length <= 0 or start + length > slots:
            return f"an extent of {length} slots from {start} in a slab of {slots}"
        held += length
    return f"{held} slots for {len(opened.tokens)} tokens" if held > len(opened.tokens) else ""


def _failed(done: TransferDone, detail: str) -> TransferDone:
    return replace(done, status=TransferStatus.FAILED, detail=detail)
