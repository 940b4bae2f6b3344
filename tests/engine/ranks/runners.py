"""An engine of several ranks without processes: the first rank's runner here, the others' in threads."""

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.device.base import EngineDevice, cpu_device
from dunlin.engine.device.device_arena import DeviceMemory
from dunlin.engine.device.host_driver import HostMemoryDriver
from dunlin.engine.device.kv_access import DeviceKvAccess
from dunlin.engine.device.pacing import HOST_PACER
from dunlin.engine.device.staging import HostStaging
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.peers.lockstep import Lockstep
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.execution.step_runner import StepRunner
from dunlin.engine.process.rank_start import RankPacer
from dunlin.engine.ranks.follower import RankFollower
from dunlin.engine.ranks.frames import RankReceiver, RankSender
from dunlin.engine.ranks.leader import LeadingRunner, RankLeader
from dunlin.engine.ranks.pace import FollowingPace, LeadingPace, word_count
from dunlin.engine.ranks.part_slab import PartCopier, PartSlab, RankStaging
from dunlin.engine.ranks.shared_memory import SharedMemoryCollective
from dunlin.engine.ranks.shared_staging import SharedStaging
from dunlin.engine.ranks.shared_words import SharedWords
from dunlin.engine.ranks.slab import RankSlab
from dunlin.engine.transfer.arena_slots import slots_by_layer
from dunlin.engine.transfer.slab import KvSlab
from tests.engine.build import SteppingClock
from tests.engine.ranks.two_ranks import load_parts

RANKS = 2


class RankedRunner(LeadingRunner):
    """The runner of rank 0, with what tests look at. `models` are the ranks' parts. `on_devices`: KV lies where its own
    rank alone reaches it, and tokens are chosen there.
    """

    def __init__(
        self,
        directory: Path,
        limits: RunnerLimits | None = None,
        *,
        deterministic: bool = True,
        on_devices: bool = False,
    ) -> None:
        self.fd = os.memfd_create("ranks")
        words = [SharedWords(self.fd, word_count(RANKS)) for _ in range(RANKS)]
        joined = [SharedMemoryCollective(self.fd, words[rank], rank, RANKS) for rank in range(RANKS)]
        devices = [memory_device() for _ in range(RANKS)] if on_devices else None
        self.models = load_parts(directory, joined, deterministic=deterministic, devices=devices)
        self._socket, theirs = socket.socketpair()
        leader = RankLeader(RankSender([self._socket]), LeadingPace(words[0], RANKS))
        copiers = [] if devices is None else self._copiers(devices, words)
        slab = self._device_slab(copiers[0], leader) if copiers else self._host_slab()
        self._first = _make_runner(self.models[0], limits, leader, OwnMemory(slab))
        super().__init__(self._first, leader)
        follower = RankFollower(
            RankReceiver(theirs), FollowingPace(words[1], 1, RANKS), copiers[1].copy if copiers else None
        )
        self.others_failed: list[BaseException] = []
        self._thread = Thread(target=self._follow, args=(theirs, follower, limits), daemon=True)
        self._thread.start()

    @property
    def steps(self) -> StepRunner:
        return self._first.steps

    @property
    def layers(self) -> None:
        """They are fixed."""
        return

    def close(self) -> None:
        """The other rank ends when the first does; what it failed of is raised here."""
        self._socket.close()
        self._thread.join()
        for model in self.models:
            fd = model.arena.fd
            model.arena.close()
            os.close(fd)
        os.close(self.fd)
        for error in self.others_failed:
            raise error

    def _follow(self, theirs: socket.socket, follower: RankFollower, limits: RunnerLimits | None) -> None:
        try:
            with theirs:
                follower.follow(_make_runner(self.models[1], limits, follower), no_clock)
        except EOFError:
            pass
        except BaseException as error:
            self.others_failed.append(error)

    def _host_slab(self) -> KvSlab:
        return RankSlab([each.decoder.kv for each in self.models], slots_by_layer(self.models[0].arena))

    def _device_slab(self, own: PartCopier, leader: RankLeader) -> KvSlab:
        first = self.models[0]
        staging = RankStaging(own, self._shared[0], leader.tell_copy)
        return PartSlab(first.decoder.kv, slots_by_layer(first.arena), RANKS, staging)

    def _copiers(self, devices: Sequence[EngineDevice], words: Sequence[SharedWords]) -> list[PartCopier]:
        self._shared = [SharedStaging(self.fd, words[rank], rank, RANKS) for rank in range(RANKS)]
        found = []
        for model, device, shared in zip(self.models, devices, self._shared, strict=True):
            assert device.staging is not None
            found.append(PartCopier(model.decoder.kv, device.staging, shared))
        return found


def memory_device() -> EngineDevice:
    """Memory of its own, and the CPU's arithmetic by torch: Triton's interpreter computes in one thread only."""
    staging = HostStaging()
    return replace(
        cpu_device(), memory=DeviceMemory(HostMemoryDriver(1 << 16)), kv=DeviceKvAccess(staging), staging=staging
    )


def _make_runner(
    model: LoadedModel, limits: RunnerLimits | None, lockstep: Lockstep, memory: OwnMemory | None = None
) -> EngineRunner:
    return EngineRunner(
        model.decoder, model.slots, SteppingClock(), limits, memory=memory, work_clock=no_clock,
        pacer=RankPacer(HOST_PACER), lockstep=lockstep,
    )  # fmt: skip


def no_clock() -> float:
    return 0.0
