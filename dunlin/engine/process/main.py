"""The engine as a process: one thread that reads commands, computes, and writes events, until its parent is gone.

It decides nothing; `EngineRunner` does. Blocking reads when idle, a look at the socket between iterations when busy.
"""

import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from dunlin.effects import Address, Message
from dunlin.engine.decoder.loading.loader import LoadedModel, open_loaded_model
from dunlin.engine.decoder.loading.weight_sources import CheckpointSource
from dunlin.engine.device.base import EngineDevice
from dunlin.engine.device.choice import open_device
from dunlin.engine.device.names import CPU, device_kind
from dunlin.engine.execution.engine_layers import LayerMemory
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.process.background import run_at_low_priority
from dunlin.engine.process.compute_threads import ComputeThreadPool
from dunlin.engine.process.frames import FrameReader, frame
from dunlin.engine.process.host_allocator import keep_freed_memory
from dunlin.engine.process.loading import check_model, load
from dunlin.engine.process.memory import say_memory, with_kv_bytes
from dunlin.engine.process.numerics import engine_numerics
from dunlin.engine.process.options import CANNOT_CONTINUE, CANNOT_START, EngineOptions
from dunlin.engine.process.progress_page import ProgressPage
from dunlin.engine.process.rank_start import leading_runner, run_rank
from dunlin.engine.ranks.errors import RankGone
from dunlin.engine.ranks.leader import LeadingRunner
from dunlin.engine.ranks.membership import RankMembership, check_rank_options, join_ranks
from dunlin.engine.ranks.processes import RankProcesses
from dunlin.engine.transfer.arena_slots import slab_of
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import EngineFailed, EngineReady, Interrupt
from dunlin.messages.types import Header, i32
from dunlin.model.errors import ModelError
from dunlin.structured_output.compiler import GrammarCompiler
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT

_READ_BYTES = 1 << 20
_PEER_PAUSE_S = 50e-6


class ActivationRequested(Exception):
    """The running engine is gone: the standby engine must start now, without more warm-up."""


class ParentChannel:
    """The socket to the parent, in messages. Owns the socket."""

    def __init__(self, connected: socket.socket, sender: Address) -> None:
        self._socket = connected
        self._header = Header(sender)
        self._reader = FrameReader()
        self._poll = select.poll()  # `select` takes no descriptor beyond 1023
        self._poll.register(connected, select.POLLIN)
        self._watched = select.poll()
        self._watched.register(connected, select.POLLIN)

    def watch(self, rank: socket.socket) -> None:
        """Notice the end of another rank, which says nothing before, while this one has nothing to do."""
        self._watched.register(rank, select.POLLIN)

    def send(self, message: Message) -> None:
        """Send a message; blocks while the parent does not read.

        :raises OSError: the parent is gone.
        """
        self._socket.sendall(frame(ENGINE_EVENT.encode(self._header, message)))

    def raise_if_activated(self) -> None:
        """:raises ActivationRequested: the parent has sent a byte, or is gone."""
        if self._poll.poll(0):
            raise ActivationRequested

    def wait_for_activation(self) -> None:
        """Report that this process is prepared, and wait until it is to start.

        :raises EOFError: the parent closed the socket.
        """
        self._socket.sendall(frame(b""))
        if not self._socket.recv(1):
            raise EOFError

    def receive(self, *, wait: bool) -> Iterator[Message]:
        """The messages that have arrived; with `wait` it blocks for the first bytes.

        :raises EOFError: the parent closed the socket.
        :raises FrameError, CodecError: the bytes are no messages.
        :raises RankGone: another rank has ended.
        """
        if not self._poll.poll(0):
            if not wait:
                return
            if any(ready != self._socket.fileno() for ready, _ in self._watched.poll()):
                raise RankGone("a rank of this engine has ended")
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise EOFError
        for body in self._reader.feed(data):
            yield ENGINE_COMMAND.decode(body)[1]


def run(options: EngineOptions, others: RankProcesses | None = None) -> int:
    """Serve the parent, which this process is tied to already; returns the exit code. `others`: the other ranks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent ends this process
    if options.rank:
        return run_rank(options)
    channel = ParentChannel(
        socket.socket(fileno=options.socket_fd), Address("engine", options.name, options.incarnation)
    )
    try:
        return _start_and_serve(options, channel, others)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0


def _start_and_serve(options: EngineOptions, channel: ParentChannel, others: RankProcesses | None = None) -> int:
    page = ProgressPage(options.progress_fd)
    try:
        keep_freed_memory()
        is_alone = device_kind(options.device) == CPU and others is None
        checked = _rehearse(options, channel) if options.standby and is_alone else None
        if options.standby:
            channel.wait_for_activation()
        device = open_device(options.device)
        joined = RankMembership() if others is None else _join(options, device, channel, others)
        rooms = TransitRooms()
        # Peers map the memory file: a device's memory, or that of several ranks, they reach by the host tier alone.
        access = PeerAccess(options.progress_fd, rooms, options.node) if device.is_host and others is None else None
        threads = ComputeThreadPool(options.threads)

        def beat() -> None:
            page.count()
            threads.adjust()

        options = with_kv_bytes(options, device, beat, joined.least)
        loaded = load(options, device, beat, joined, page.count)
        say_memory(loaded, options, device)
        threads.allow(checked or check_model(loaded, options, beat, device))
        identity = joined.shared_identity(loaded.arena.identity)
        clock = time.perf_counter
        grammars = GrammarCompiler(options.model, loaded.config.vocab, loaded.config.eos_ids)
        if others is None:
            memory = OwnMemory(slab_of(loaded.arena, loaded.decoder.kv, device.kv), rooms, access, options.node)
            layers = LayerMemory(loaded.arena, loaded.weights, CheckpointSource(options.model))
            segments = None if device.begin_segments is None else device.begin_segments(loaded.decoder, beat)
            runner: EngineRunner | LeadingRunner = EngineRunner(
                loaded.decoder, loaded.slots, clock, beat=beat, memory=memory, layers=layers,
                work_clock=device.work_clock, grammars=grammars, pacer=device.pacer, begin_segments=segments,
                rows_may_leave_segments=device.rows_may_leave_segments,
            )  # fmt: skip
        else:
            runner = leading_runner(loaded, options, device, joined, others, beat, grammars)
        beat()
    except (ModelError, ValueError, MemoryError, OSError, RankGone) as error:
        channel.send(EngineFailed(f"cannot start: {error}"))
        return CANNOT_START
    channel.send(_ready(loaded, options, b"" if access is None else access.agent, identity))
    try:
        serve(runner, channel, page, beat)
    except (EOFError, OSError):
        raise
    except Exception as error:  # whatever it is, the parent should know before this process ends
        traceback.print_exc()
        channel.send(EngineFailed(f"cannot go on: {type(error).__name__}: {error}"))
        return CANNOT_CONTINUE
    return 0


def serve(
    runner: EngineRunner | LeadingRunner, channel: ParentChannel, page: ProgressPage, beat: Callable[[], None]
) -> None:
    """Pass commands to the runner and its events back, until the parent closes the socket.

    A step pauses at a safepoint where the stop word has changed: then what has arrived is read before it goes on.

    :raises EOFError: it did.
    """

    def safepoint() -> bool:
        beat()
        return page.is_called()

    while True:
        for message in channel.receive(wait=not runner.busy):
            if isinstance(message, Interrupt):
                page.hear(message.ticket)
            for event in runner.receive(message):
                channel.send(event)
        if runner.busy:
            for event in runner.work(safepoint):
                channel.send(event)
        if runner.is_waiting:
            time.sleep(_PEER_PAUSE_S)


def _join(
    options: EngineOptions, device: EngineDevice, channel: ParentChannel, others: RankProcesses
) -> RankMembership:
    """Compute with the other ranks from now on. :raises ValueError: it cannot be done here."""
    check_rank_options(options)
    for each in others.sockets:
        channel.watch(each)
    if not device.is_host:
        others.end_process_with_them()
    others.go()
    options = replace(options, rendezvous_fd=others.rendezvous_fd)
    return join_ranks(options, device, others.shared_fd, others.is_alive)


def _rehearse(options: EngineOptions, channel: ParentChannel) -> Sequence[int] | None:
    """Warm a standby process up beside the running engine, whose arena it only reads.

    It keeps nothing but a warm process: the arena may change before its turn, so it maps it again then. Runs in one
    thread of low priority, for the cores are the other engine's. None: nothing was checked, for no engine has loaded
    the model yet, its turn came before the end, or the running engine changed its layers meanwhile.
    """

    def work() -> Sequence[int] | None:
        torch.set_num_threads(1)
        device = open_device(options.device)
        chosen = engine_numerics(options, device)
        model = open_loaded_model(
            options.model, options.dtype, options.kv_bytes, chosen, options.arena_fd, options.kv_dtype
        )
        if model is None:
            return None
        try:
            checked = check_model(model, options, channel.raise_if_activated, device)
            if device.begin_segments is not None:
                device.begin_segments(model.decoder, None)  # its library is loaded before it is needed
            return checked if model.arena.is_current() else None
        except ModelError:
            if model.arena.is_current():
                raise
            return None  # it computed with what is KV by now
        finally:
            model.arena.close()

    try:
        return run_at_low_priority(work)
    except ActivationRequested:
        return None


def _ready(loaded: LoadedModel, options: EngineOptions, agent: bytes, identity: int) -> EngineReady:
    """`identity` names the use of the memory of all ranks."""
    config = loaded.config
    item_bytes = loaded.decoder.kv[0].element_size()
    return EngineReady(
        layers=i32(loaded.layers),
        slots=loaded.slots,
        quantum=loaded.quantum,
        weights_digest=loaded.weights_digest,
        kv_dtype=options.kv_dtype,
        kv_bytes_per_token=config.layers * config.slot_bytes(item_bytes),
        max_positions=config.max_positions,
        vocabulary=config.vocab,
        deterministic=options.deterministic,
        layout=loaded.arena.record.layout,
        layer_digests=loaded.layer_digests,
        agent=agent,
        arena=identity,
        model_layers=config.layers,
        adapters=tuple(loaded.decoder.adapters.numbers),
    )
