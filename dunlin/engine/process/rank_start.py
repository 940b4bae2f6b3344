"""How the ranks of an engine start: rank 0 leads, as the engine's process; each other one follows it until it ends."""

import socket
import sys
import time
from collections.abc import Callable
from functools import partial

from dunlin.engine.decoder.loading.loader import LoadedModel, open_rank_kv
from dunlin.engine.device.base import EngineDevice
from dunlin.engine.device.choice import open_device
from dunlin.engine.device.pacing import HOST_PACER, Pacer
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.peers.lockstep import Lockstep
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.process.compute_threads import ComputeThreadPool
from dunlin.engine.process.host_allocator import keep_freed_memory
from dunlin.engine.process.loading import check_model, load
from dunlin.engine.process.memory import with_kv_bytes
from dunlin.engine.process.options import CANNOT_START, EngineOptions
from dunlin.engine.ranks.follower import RankFollower
from dunlin.engine.ranks.frames import RankReceiver, RankSender
from dunlin.engine.ranks.leader import LeadingRunner, RankLeader
from dunlin.engine.ranks.membership import RankMembership, join_ranks
from dunlin.engine.ranks.pace import FollowingPace, LeadingPace
from dunlin.engine.ranks.part_slab import PartCopier, PartSlab, RankStaging
from dunlin.engine.ranks.processes import RankProcesses
from dunlin.engine.ranks.slab import RankSlab
from dunlin.engine.transfer.arena_slots import slots_by_layer
from dunlin.engine.transfer.slab import KvSlab
from dunlin.model.errors import ModelError
from dunlin.structured_output.compiler import GrammarCompiler


class RankPacer:
    """The `pacer` of one of several ranks. What a rank does may not depend on when its device is done: a step is read
    where it ends, and what runs ahead of that is launched whole.
    """

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer

    def pace(self, left: int) -> None:
        self._pacer.pace(left)

    def settle(self) -> None:
        self._pacer.settle()

    def advance(self, most_s: float) -> bool:
        return True

    def mark(self) -> None: ...


def leading_runner(
    loaded: LoadedModel, options: EngineOptions, device: EngineDevice, joined: RankMembership, others: RankProcesses,
    beat: Callable[[], None], grammars: GrammarCompiler,
) -> LeadingRunner:  # fmt: skip
    """The runner of rank 0, once all ranks have loaded."""
    assert joined.words is not None
    leader = RankLeader(RankSender(others.sockets), LeadingPace(joined.words, options.ranks))
    slab = _host_slab(loaded, options, others) if device.is_host else _device_slab(loaded, device, joined, leader)
    memory = OwnMemory(slab, node=options.node)
    return LeadingRunner(_runner(loaded, device, beat, leader, memory, grammars), leader)


def run_rank(options: EngineOptions) -> int:
    """Compute what rank 0 computes, until it ends; returns the exit code."""
    connected = socket.socket(fileno=options.socket_fd)
    if not connected.recv(1):
        return 0
    try:
        follow = _join_and_load(options, connected)
    except (ModelError, ValueError, MemoryError, OSError) as error:
        print(f"dunlin engine {options.name}: rank {options.rank} cannot start: {error}", file=sys.stderr, flush=True)
        return CANNOT_START
    try:
        follow()
    except (EOFError, ConnectionResetError):
        pass
    return 0


def _join_and_load(options: EngineOptions, connected: socket.socket) -> Callable[[], None]:
    """What follows rank 0 from then on; see `RankFollower.follow`."""
    keep_freed_memory()
    device, threads = open_device(options.device), ComputeThreadPool(options.threads)
    joined = join_ranks(options, device, options.shared_fd)
    assert joined.words is not None
    options = with_kv_bytes(options, device, threads.adjust, joined.least)
    loaded = load(options, device, threads.adjust, joined, lambda: None)
    threads.allow(check_model(loaded, options, threads.adjust, device))
    joined.shared_identity(loaded.arena.identity)
    copier = None if device.is_host else _copier(loaded, device, joined)
    pace = FollowingPace(joined.words, options.rank, options.ranks)
    follower = RankFollower(RankReceiver(connected), pace, None if copier is None else copier.copy)
    return partial(follower.follow, _runner(loaded, device, threads.adjust, follower), threads.adjust, device.pacer)


def _runner(
    loaded: LoadedModel, device: EngineDevice, beat: Callable[[], None], lockstep: Lockstep,
    memory: OwnMemory | None = None, grammars: GrammarCompiler | None = None,
) -> EngineRunner:  # fmt: skip
    """All ranks make theirs at the same time: what is recorded in advance has sums."""
    on_device = None if device.is_host else device.begin_segments
    return EngineRunner(
        loaded.decoder, loaded.slots, time.perf_counter, beat=beat, memory=memory, work_clock=_no_clock,
        grammars=grammars, pacer=HOST_PACER if device.is_host else RankPacer(device.pacer),
        begin_segments=None if on_device is None else on_device(loaded.decoder, beat),
        rows_may_leave_segments=device.rows_may_leave_segments, lockstep=lockstep,
    )  # fmt: skip


def _host_slab(loaded: LoadedModel, options: EngineOptions, others: RankProcesses) -> KvSlab:
    """Rank 0 maps the memory of all ranks."""
    kv = open_rank_kv(options.model, options.dtype, options.kv_bytes, others.arena_fds, options.kv_dtype)
    return RankSlab([loaded.decoder.kv, *kv], slots_by_layer(loaded.arena))


def _device_slab(loaded: LoadedModel, device: EngineDevice, joined: RankMembership, leader: RankLeader) -> KvSlab:
    """Each rank copies its part, told by rank 0."""
    assert joined.staging is not None
    staging = RankStaging(_copier(loaded, device, joined), joined.staging, leader.tell_copy)
    return PartSlab(loaded.decoder.kv, slots_by_layer(loaded.arena), joined.collective.ranks, staging)


def _copier(loaded: LoadedModel, device: EngineDevice, joined: RankMembership) -> PartCopier:
    assert device.staging is not None
    assert joined.staging is not None
    return PartCopier(loaded.decoder.kv, device.staging, joined.staging)


def _no_clock() -> float:
    """Ranks cut work by counts: their clocks differ."""
    return 0.0
