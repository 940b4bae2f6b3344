"""A model of an engine: it keeps the real one's contract, takes the time of a `Timing`, and computes no tensor.

It routes messages to its sequences, steps, moves and layers. A request that the contract forbids raises
ContractBroken; what a real engine accepts (queued rows of sequences that ended or were closed) the model accepts too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.interrupts import InterruptTimes
from dunlin.cost.links import EngineLinks
from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.messages.engine import (
    CancelTransfer,
    Close,
    ClosePeerRoom,
    Discard,
    EngineProgress,
    EngineReady,
    Forget,
    Interrupt,
    MapHost,
    Meet,
    Open,
    OpenPeerRoom,
    Remap,
    Resume,
    Step,
    StopEngine,
    Transfer,
    Unsupported,
)
from dunlin.messages.types import i32
from simulator.engine.errors import ContractBroken
from simulator.engine.host_memory import SimulatedHostMemory
from simulator.engine.kv_audit import KvAudit
from simulator.engine.layers import LayerSet, RemapDue
from simulator.engine.moves import HOST_KINDS, SimulatedKvMover, TransferDue
from simulator.engine.peer_network import PeerNetwork
from simulator.engine.peer_transfers import PeerCopyDue, PeerTransfers
from simulator.engine.remapping import SimulatedRemapper
from simulator.engine.sequences import SimulatedSequences
from simulator.engine.stepping.group_meetings import GroupMeetings
from simulator.engine.stepping.group_steps import GroupSteps, PeersDue
from simulator.engine.stepping.parked_rows import SimulatedParkedRows
from simulator.engine.stepping.parked_steps import SimulatedParkedSteps
from simulator.engine.stepping.row_compute import RowComputer
from simulator.engine.stepping.step_queue import is_unsupported
from simulator.engine.stepping.step_runner import SafepointDue, SimulatedStepRunner, StepDue
from simulator.engine.timing import LinearTiming, Timing
from simulator.engine.token_model import (
    VOCABULARY,
    AnswerTokenModel,
    PositionTokenModel,
    PrefixTokenModel,
    TokenModel,
)
from simulator.engine.transit_rooms import SimulatedTransitRooms
from simulator.links.ports import EnginePorts


def make_engine_ready(**overrides: Any) -> EngineReady:
    """The `EngineReady` of a small modelled engine: 2 layers, 256 slots; `overrides` replace fields."""
    values = {
        "layers": i32([0, 1]),
        "slots": 256,
        "quantum": 16,
        "weights_digest": "fake",
        "kv_dtype": "float32",
        "kv_bytes_per_token": 64,
        "max_positions": 4096,
        "vocabulary": VOCABULARY,
    }
    return EngineReady(**{**values, **overrides})


def engine_ready_of(timing: EngineTiming, **overrides: Any) -> EngineReady:
    """The `EngineReady` of an engine with the model and the memory of `timing`; `overrides` replace fields."""
    return make_engine_ready(
        **{
            "layers": i32(range(timing.layers)),
            "slots": timing.slots,
            "kv_bytes_per_token": timing.kv_bytes_per_token,
            **overrides,
        }
    )


@dataclass(frozen=True, slots=True)
class SimulatedEngineSettings:
    """Settings of the modelled engines of an instance.

    `audit`: every slot of the KV cache is audited, and the next token depends on all tokens before; otherwise it
    depends on the seed and the position, and the simulator's work per step does not grow with the context.
    `progress_s`: seconds between two reads of the safepoint counter (None: it is not read). `restart_s`: seconds from
    an engine's end to its successor's start. `links`: what its copies share, and what they take from steps.
    `interrupts`: how rows leave steps.
    `weights_bytes`: bytes of one layer's weights, which become room for KV when the layer is dropped.
    `failing_token`: a text that contains it has logits that are not finite. `parked_rows`, `parked_tokens`: the most
    that may be parked at once. `has_agent`: engines of the same node can meet it. `answer_ends`: where answers end by
    themselves, as in `AnswerTokenModel` (without `audit` alone); None: every answer goes on to its bound.
    """

    ready: EngineReady = field(default_factory=make_engine_ready)
    timing: Timing = field(default_factory=LinearTiming)
    progress_s: float | None = None
    restart_s: float = 1.0
    audit: bool = True
    links: EngineLinks = field(default_factory=EngineLinks)
    interrupts: InterruptTimes = field(default_factory=InterruptTimes)
    weights_bytes: int = 0
    failing_token: int | None = None
    parked_rows: int = 64
    parked_tokens: int = 1 << 20
    parked_steps: int = 8
    has_agent: bool = True
    answer_ends: Mapping[int, int] | None = None

    @property
    def token_model(self) -> TokenModel:
        """The rule for the next token that fits `audit`."""
        if self.audit:
            return PrefixTokenModel()
        return PositionTokenModel() if self.answer_ends is None else AnswerTokenModel(self.answer_ends)


def engine_settings(**flat: Any) -> SimulatedEngineSettings:
    """Settings by flat names: fields of `SimulatedEngineSettings` and of `EngineReady`, and a linear timing (`step_s`,
    `token_s`, `move_s`, `load_s`; `move_busy_s` seconds of a move block steps).
    """
    own = {each.name: flat.pop(each.name) for each in fields(SimulatedEngineSettings) if each.name in flat}
    move_s, busy_s = flat.pop("move_s", 0.005), flat.pop("move_busy_s", 0.001)
    timing = LinearTiming(flat.pop("step_s", 0.01), flat.pop("token_s", 0.0), move_s, 0.0, flat.pop("load_s", 0.0))
    ready = own.pop("ready", None)
    said = replace(ready, **flat) if ready is not None else make_engine_ready(**flat)
    links = EngineLinks(host_busy_share=busy_s / move_s)
    return SimulatedEngineSettings(**{"timing": timing, "links": links, **own}, ready=said)


@dataclass(frozen=True, slots=True)
class ProgressPoll:
    """Timer: the engine's host reads the safepoint counter."""


class SimulatedEngine:
    """One engine process.

    `is_stuck`: it passes no safepoint and answers no message, while its host goes on reading the counter. `safepoints`
    counts interrupts that took effect and moves, the runner's those of steps; `most_queued` is the largest number of
    steps queued at once. `steps` lists every step received (with `audit` alone).
    """

    def __init__(
        self,
        instance: Address,
        settings: SimulatedEngineSettings,
        tier: SimulatedHostMemory,
        ports: EnginePorts,
        audit: KvAudit | None = None,
        layers: LayerSet | None = None,
        network: PeerNetwork | None = None,
    ) -> None:
        self.address = Address("engine", instance.name)
        ready = settings.ready
        self.layers = layers = layers or LayerSet(ready, settings.weights_bytes)
        self.ready = layers.as_ready()
        self.is_stuck = False
        self.safepoints = 0
        self.most_queued = 0
        self.steps: list[Step] = []
        self._instance = instance
        self._settings = settings
        self._audit = audit
        timing, voice = settings.timing, settings.token_model
        self._sequences = SimulatedSequences(ready.slots, ready.max_positions, voice, audit, settings.failing_token)
        self.moves = SimulatedKvMover(instance, ready, self._sequences, tier, timing, audit, ports)
        layer_bytes = ready.kv_bytes_per_token / layers.all
        self.rooms = SimulatedTransitRooms()
        self.peers = PeerTransfers(
            instance,
            self.address,
            network,
            self._sequences,
            layer_bytes,
            ready.kv_dtype,
            lambda step: self.runner.is_unanswered(step),
            lambda step: self.runner.is_running(step),
            ports,
        )
        wake = (lambda peer: None) if network is None else (lambda peer: network.wake(peer, PeersDue()))
        meetings = GroupMeetings() if network is None else network.meetings
        group = GroupSteps(self.address, meetings, self.peers.met, self.peers.life, wake, audit, self.peers.is_near)
        self.runner = SimulatedStepRunner(
            instance,
            self._sequences,
            RowComputer(
                self._sequences, ready.vocabulary, voice, audit, self._failed_sequence, self.rooms, layers.all, group
            ),
            timing,
            layers,
            ready.vocabulary,
            audit,
            lambda ticket: self.moves.is_pending(ticket) or self.peers.is_pending(ticket),
            SimulatedParkedRows(settings.parked_rows, settings.parked_tokens),
            SimulatedParkedSteps(settings.parked_steps, settings.parked_tokens),
            lambda now_s: self.remapper.between_steps(now_s),
            group,
            ports.meter.take,
            settings.interrupts,
        )
        self.remapper = SimulatedRemapper(
            instance,
            ready,
            layers,
            timing,
            audit,
            lambda: self.runner.running is not None,
            lambda: self.runner.has_parked,
            self.peers.lacks,
        )
        self._handlers = self._routes()

    def _routes(self) -> dict[type[Any], Callable[[float, Any], list[Effect]]]:
        return {
            StepDue: self._on_step_over,
            Step: self._on_step,
            Open: self._on_open,
            Close: self._on_close,
            Transfer: self._on_move,
            TransferDue: self._on_move_over,
            CancelTransfer: self._on_cancel,
            PeerCopyDue: lambda now_s, due: [*self.peers.on_due(now_s, due), *self.runner.begin(now_s)],
            Meet: lambda now_s, message: [*self.peers.meet(now_s, message), *self.runner.look_at_peers(now_s)],
            PeersDue: lambda now_s, due: self.runner.look_at_peers(now_s),
            OpenPeerRoom: self.peers.open_room,
            ClosePeerRoom: self.peers.close_room,
            Forget: lambda now_s, message: [
                *self.peers.forget(now_s, message),
                *self.runner.look_at_peers(now_s),
                *self.runner.begin(now_s),
            ],
            MapHost: self._on_map_host,
            Interrupt: self.runner.interrupt,
            SafepointDue: self._on_safepoint,
            Resume: self.runner.resume,
            Discard: self._on_discard,
            Remap: self.remapper.remap,
            RemapDue: self.remapper.over,
        }

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Handle a message of the instance or one of this engine's timers."""
        handler = self._handlers.get(type(message))
        if handler is not None:
            effects = [] if self.is_stuck else handler(now_s, message)
            if not self.peers.is_behind:
                return effects
            return [*self.peers.fail_left(now_s, effects), *effects, *self.peers.begin_behind(now_s)]
        if isinstance(message, ProgressPoll):
            return self._on_tick(now_s)
        if isinstance(message, Joined):
            ticking = (
                [After(self._settings.progress_s, ProgressPoll())] if self._settings.progress_s is not None else []
            )
            return [After(self._settings.timing.load_s, self.ready), *ticking]
        if isinstance(message, EngineReady):
            return [Send(self._instance, message)]
        if self.is_stuck or isinstance(message, Gone | StopEngine):
            return []
        return [Send(self._instance, Unsupported(type(message).__name__))]

    def slots_being_written(self) -> list[int]:
        """The slots that queued steps and pending moves write."""
        return [*self.runner.writing(), *self.moves.writing()]

    def died(self, now_s: float) -> None:
        """The engine process ended in the midst of its copies."""
        self.moves.died(now_s)
        self.peers.died(now_s)

    @property
    def open_sequences(self) -> list[int]:
        """Numbers of the sequences opened and not closed."""
        return list(self._sequences.by_number)

    def _on_tick(self, now_s: float) -> list[Effect]:
        if self._settings.progress_s is None:
            return []
        runner, passed = self.runner, self.safepoints
        if self.is_stuck:
            passed += runner.safepoints
        else:
            passed += runner.progress(now_s) + self.remapper.progress(now_s)
        return [Send(self._instance, EngineProgress(passed)), After(self._settings.progress_s, ProgressPoll())]

    def _on_open(self, now_s: float, message: Open) -> list[Effect]:
        if message.adapter and message.adapter not in self.ready.adapters:
            raise ContractBroken(f"sequence {message.sequence}: no adapter of digest {message.adapter}")
        self._sequences.open(message)
        return []

    def _on_close(self, now_s: float, message: Close) -> list[Effect]:
        self._sequences.close(message.sequence, self.runner.is_computing(message.sequence))
        self.runner.parked.forget(message.sequence)
        self.runner.parked.free([message.sequence])
        self.runner.close_suspended(message.sequence)
        self.moves.forget(message.sequence)
        self.rooms.forget(message.sequence)
        return []

    def _on_step(self, now_s: float, step: Step) -> list[Effect]:
        if is_unsupported(step):
            return [Send(self._instance, Unsupported("Step", "no such step", step=step.step))]
        is_partial = step.layer_start or step.layer_stop or step.layout or not self.layers.is_whole
        if is_partial and (refusal := self.layers.refusal(step)):
            return [Send(self._instance, Unsupported("Step", refusal, step=step.step))]
        if self._settings.audit:
            self.steps.append(step)
        effects = self.runner.add(now_s, step)
        self.most_queued = max(self.most_queued, self.runner.steps_held)
        return effects

    def _on_cancel(self, now_s: float, message: CancelTransfer) -> list[Effect]:
        stopped = [*self.moves.cancel(now_s, message.ticket), *self.peers.cancel(now_s, message.ticket)]
        return [*stopped, *self.runner.begin(now_s)]

    def _on_discard(self, now_s: float, message: Discard) -> list[Effect]:
        self.runner.discard(message)
        return []

    def _on_safepoint(self, now_s: float, due: SafepointDue) -> list[Effect]:
        self.safepoints += 1
        return self.runner.at_safepoint(now_s, due)

    def _on_step_over(self, now_s: float, due: StepDue) -> list[Effect]:
        return self.runner.on_due(now_s, due)

    def _on_move(self, now_s: float, move: Transfer) -> list[Effect]:
        if move.layout != self.layers.layout:
            detail = f"the layout is {self.layers.layout}, the transfer was ordered for {move.layout}"
            return [Send(self._instance, Unsupported("Transfer", detail, ticket=move.ticket))]
        return self.moves.add(now_s, move) if move.kind in HOST_KINDS else self.peers.add(now_s, move)

    def _failed_sequence(self, ticket: int) -> int | None:
        failed = self.moves.failed_sequence(ticket)
        return self.peers.failed_sequence(ticket) if failed is None else failed

    def _on_move_over(self, now_s: float, due: TransferDue) -> list[Effect]:
        effects = self.moves.on_due(now_s, due)
        self.safepoints += bool(effects)
        return [*effects, *self.runner.begin(now_s)]

    def _on_map_host(self, now_s: float, message: MapHost) -> list[Effect]:
        self.moves.is_mapped = True
        return []
