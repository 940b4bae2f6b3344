"""Answers the engine's commands with events; commands that it does not support with `Unsupported`.

Owns the sequences, the queue of steps and that of transfers; computes one iteration per call of `work`. Knows no socket
and no process; its only clock is the one it is given.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from dunlin.engine.attention.base import Safepoint
from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.sampling import SamplingInput, sample_tokens
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.engine.execution.step_batch import (
    QueuedStep,
    SampledRows,
    StepError,
    apply_samples,
    build_batch,
    check_step,
    step_done,
)
from dunlin.engine.transfer.activation_rooms import ActivationRooms
from dunlin.engine.transfer.copy_planner import CopyPlanner
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import HostMapping
from dunlin.engine.transfer.peer_arenas import PeerArenas
from dunlin.engine.transfer.slab import KvSlab
from dunlin.engine.transfer.transfer_queue import Ended, TransferLimits, TransferQueue
from dunlin.messages.engine import (
    CancelTransfer,
    Close,
    Discard,
    Forget,
    Interrupt,
    MapHost,
    Meet,
    Met,
    Open,
    Remap,
    Resume,
    Step,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import Payload, TransferKind, TransferStatus

Event = Any
INTO_SLAB = (TransferKind.HOST_TO_SLAB, TransferKind.PEER_TO_SLAB)


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    """Bounds of the state that the engine keeps, and of the bytes that transfers copy beside steps."""

    steps: int = 16
    sequences: int = 4096
    transfers: TransferLimits = field(default_factory=TransferLimits)


class EngineRunner:
    """One engine without its process. Feed `receive`, then call `work` while `busy`."""

    def __init__(
        self,
        decoder: Decoder,
        slots: int,
        clock: Callable[[], float],
        limits: RunnerLimits | None = None,
        slab: KvSlab | None = None,
        rooms: ActivationRooms | None = None,
    ) -> None:
        self._decoder = decoder
        self._slots = slots
        self._clock = clock
        self._limits = limits or RunnerLimits()
        self._sequences: dict[int, EngineSequence] = {}
        self._steps: deque[QueuedStep] = deque()
        self._tier = HostMapping()
        self._peers = PeerArenas()
        own = slab or KvSlab(decoder.kv, [slots] * len(decoder.kv))
        planner = CopyPlanner(own, rooms or ActivationRooms(), self._tier, self._peers)
        self._transfers = TransferQueue(planner, clock, self._limits.transfers)
        # Transfers that did not land, by number, with the sequence whose rows must not run on them.
        self._failed: dict[int, int] = {}
        self._idle_since_s = clock()
        self._iteration_s = 0.0
        self._handlers: dict[type[Any], Callable[[Any], list[Event]]] = {
            Open: self._on_open,
            Close: self._on_close,
            Step: self._on_step,
            Transfer: self._on_transfer,
            CancelTransfer: self._on_cancel_transfer,
            MapHost: self._on_map_host,
            Meet: self._on_meet,
            Forget: self._on_forget,
            Interrupt: lambda message: [
                Unsupported("Interrupt", "rows stay to the end of their step", ticket=message.ticket)
            ],
            Resume: lambda message: [Unsupported("Resume", "no row is parked", step=message.step)],
            Discard: lambda message: [],
            Remap: lambda message: [Unsupported("Remap", "the layers held are fixed")],
        }

    def __repr__(self) -> str:
        return f"[sequences: {len(self._sequences)} | steps: {len(self._steps)} | transfers: {len(self._transfers)}]"

    @property
    def busy(self) -> bool:
        """Whether `work` has something to do."""
        return bool(self._steps) or self._transfers.has_work

    def receive(self, message: Any) -> list[Event]:
        """Take a command in; returns the events that answer it at once."""
        handler = self._handlers.get(type(message))
        return handler(message) if handler else [Unsupported(type(message).__name__, "not a command of an engine")]

    def work(self, safepoint: Safepoint) -> list[Event]:
        """Chunks of the most urgent transfers, then one iteration of the first step unless it waits for one."""
        events = self._advance_transfers(safepoint)
        if self._steps and not any(ticket in self._transfers for ticket in self._steps[0].step.after):
            events += self._iterate(safepoint)
        return events

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
        self._sequences[message.sequence] = EngineSequence(message, positions)
        return []

    def _on_close(self, message: Close) -> list[Event]:
        self._sequences.pop(message.sequence, None)
        self._failed = {ticket: sequence for ticket, sequence in self._failed.items() if sequence != message.sequence}
        return []

    def _on_step(self, message: Step) -> list[Event]:
        if len(self._steps) >= self._limits.steps:
            return [Unsupported("Step", f"{self._limits.steps} steps are queued", step=message.step)]
        try:
            self._steps.append(check_step(message, self._slots))
        except StepError as error:
            return [Unsupported("Step", str(error), step=message.step)]
        return []

    def _on_transfer(self, message: Transfer) -> list[Event]:
        is_written = not any(message.step and queued.step.step == message.step for queued in self._steps)
        try:
            self._transfers.add(message, is_written=is_written)
        except TransferError as error:
            return [Unsupported("Transfer", str(error), ticket=message.ticket)]
        return []

    def _on_cancel_transfer(self, message: CancelTransfer) -> list[Event]:
        ended = self._transfers.cancel(message.ticket)
        return [] if ended is None else [self._land(ended)]

    def _on_meet(self, message: Meet) -> list[Event]:
        events = self._on_forget(Forget(message.peer))
        try:
            self._peers.meet(message.peer, message.metadata)
        except TransferError as error:
            return [*events, Met(message.peer, str(error))]
        return [*events, Met(message.peer)]

    def _on_forget(self, message: Forget) -> list[Event]:
        self._peers.forget(message.peer)
        return [self._land(ended) for ended in self._transfers.forget_peer(message.peer)]

    def _on_map_host(self, message: MapHost) -> list[Event]:
        try:
            self._tier.map(message)
        except (OSError, ValueError) as error:
            return [Unsupported("MapHost", f"{message.path} of {message.size_bytes} bytes: {error}")]
        return []

    def _advance_transfers(self, safepoint: Safepoint) -> list[Event]:
        if not self._transfers.has_work:
            return []
        ended = self._transfers.work_in_step(self._iteration_s) if self._steps else self._transfers.work_idle()
        safepoint()
        return [self._land(each) for each in ended]

    def _land(self, ended: Ended) -> TransferDone:
        """A region that came back belongs to its sequence from now on; one that did not stops the rows that wait for
        it.
        """
        transfer, done = ended.transfer, ended.done
        if transfer.kind not in INTO_SLAB or transfer.payload is not Payload.KV:
            return done
        if done.status is TransferStatus.OK:
            done = self._adopt(transfer, done)
        if done.status is not TransferStatus.OK and transfer.sequence in self._sequences:
            self._failed[transfer.ticket] = transfer.sequence
        return done

    def _adopt(self, transfer: Transfer, done: TransferDone) -> TransferDone:
        if transfer.sequence == 0:
            return done  # no sequence has it yet: a later `Open` names the slots
        state = self._sequences.get(transfer.sequence)
        if state is None:
            return _failed(done, f"sequence {transfer.sequence} is not open")
        if (transfer.region.layer_start, transfer.region.layer_stop) != (0, len(self._decoder.kv)):
            return done
        position = transfer.region.start
        try:
            for start, length in zip(transfer.extent_start, transfer.extent_length, strict=True):
                state.slots.assign(position, start, length)
                position += length
        except ValueError as error:
            return _failed(done, str(error))
        return done

    def _iterate(self, safepoint: Safepoint) -> list[Event]:
        """One iteration of the first step."""
        started_s, queued = self._clock(), self._steps.popleft()
        spoiled = {self._failed[ticket] for ticket in queued.step.after if ticket in self._failed}
        try:
            plan = build_batch(queued, self._sequences, spoiled)
        except StepError as error:
            self._transfers.layers_written(queued.step.step, None)
            return [Unsupported("Step", str(error), step=queued.step.step)]
        samples = SampledRows()
        if plan.batch is not None:
            logits = self._decoder.forward(plan.batch, safepoint)
            draws = [SamplingInput(state.sampling, state.tokens, state.prompt_tokens) for _, state in plan.sampled]
            samples = apply_samples(plan, sample_tokens(logits, draws))
        ended_s = self._clock()
        self._iteration_s = ended_s - started_s
        done = step_done(plan, samples, self._iteration_s, started_s - self._idle_since_s)
        self._idle_since_s = ended_s
        ended = self._transfers.step_left(queued.step.step, list(done.dropped))
        self._transfers.layers_written(queued.step.step, None)
        return [*(self._land(each) for each in ended), done]


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
