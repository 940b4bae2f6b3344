"""One rank's ways to the others: none where there is one rank."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import xxhash

from dunlin.engine.device.base import EngineDevice
from dunlin.engine.device.names import CUDA, device_kind
from dunlin.engine.process.options import EngineOptions
from dunlin.engine.ranks.collective import ONE_RANK, Collective
from dunlin.engine.ranks.device_collective import DeviceCollective, open_process_group
from dunlin.engine.ranks.pace import word_count
from dunlin.engine.ranks.shared_memory import SharedMemoryCollective
from dunlin.engine.ranks.shared_staging import SharedStaging
from dunlin.engine.ranks.shared_words import SharedWords, is_supported


@dataclass(frozen=True, slots=True)
class RankMembership:
    """`words` None: there is one rank. `staging`: through which their KV passes; None: rank 0 maps it."""

    collective: Collective = ONE_RANK
    words: SharedWords | None = None
    staging: SharedStaging | None = None

    def shared_identity(self, identity: int) -> int:
        """Names the memory of all ranks, from what names each one's."""
        if self.collective.ranks == 1:
            return identity
        found = self.collective.all_gather(torch.tensor([identity], dtype=torch.int64))
        return xxhash.xxh3_64_intdigest(found.numpy().tobytes()) >> 1 | 1

    def least(self, value: int) -> int:
        """The least of all ranks' values. :raises RankGone: another rank has ended."""
        return int(self.collective.all_gather(torch.tensor([value], dtype=torch.int64)).min())


def join_ranks(
    options: EngineOptions, device: EngineDevice, shared_fd: int, is_alive: Callable[[], bool] = lambda: True
) -> RankMembership:
    """What the rank of these options, on its own `device`, computes together with the others.

    :raises ValueError: it cannot here.
    """
    if options.ranks == 1:
        return RankMembership()
    check_rank_options(options)
    rank, ranks = options.rank, options.ranks
    words = SharedWords(shared_fd, word_count(ranks), is_alive)
    host = SharedMemoryCollective(shared_fd, words, rank, ranks)
    if device.is_host:
        return RankMembership(host, words)
    if device_kind(device.name) == CUDA:
        open_process_group(options.rendezvous_fd, rank, ranks, device.torch_device)
    return RankMembership(DeviceCollective(host), words, SharedStaging(shared_fd, words, rank, ranks))


def check_rank_options(options: EngineOptions) -> None:
    """:raises ValueError: several ranks cannot compute so."""
    if options.deterministic:
        raise ValueError("the deterministic mode has the bits of one rank: drop it, or have one rank")
    if options.adapters:
        raise ValueError(f"adapters are computed by one rank, not by {options.ranks}: drop one of the two")
    if not is_supported():
        raise ValueError("several ranks need Linux on x86-64: have one rank")
