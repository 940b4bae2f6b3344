"""The collective of ranks that have a device each: torch.distributed between devices, shared memory for the rest."""

import os
import sys

import torch
from torch import Tensor, distributed

from dunlin.engine.ranks.collective import Collective

NCCL = "nccl"
INTERFACE = "NCCL_SOCKET_IFNAME"
"""By which NCCL finds its peers on the network: ranks are on one machine."""
_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor


class DeviceCollective:
    """See `Collective`. `host` takes tensors of the host; those on devices go through torch's process group, which has
    the same ranks, in the order of the current stream.
    """

    def __init__(self, host: Collective) -> None:
        self.rank = host.rank
        self.ranks = host.ranks
        self._host = host

    def all_reduce(self, part: Tensor) -> Tensor:
        """See `Collective`: into `part`, added in the library's order and in the dtype's precision."""
        if part.device.type == "cpu":
            return self._host.all_reduce(part)
        return reduce_in_place(part)

    def all_gather(self, part: Tensor) -> Tensor:
        return self._host.all_gather(part) if part.device.type == "cpu" else gather_parts(part, self.ranks)


def reduce_in_place(part: Tensor) -> Tensor:
    """`part`, which is now the sum of all ranks' parts."""
    part = part.contiguous()
    distributed.all_reduce(part)
    return part


def gather_parts(part: Tensor, ranks: int) -> Tensor:
    """See `Collective.all_gather`."""
    out = part.new_empty(ranks, *part.shape)
    _gather(out.view(-1), part.reshape(-1))
    return out


def open_process_group(store_fd: int, rank: int, ranks: int, device: torch.device | None, backend: str = NCCL) -> None:
    """Make torch's process group of this process, which waits for the other ranks. `store_fd`: an empty memory file of
    all, by which they find each other; `device`: this rank's, None: none of its own.

    :raises ValueError: the devices cannot be joined; the text says why.
    """
    os.environ.setdefault(INTERFACE, "lo")
    store = distributed.FileStore(f"/proc/self/fd/{store_fd}", ranks)  # type: ignore[attr-defined]
    try:
        distributed.init_process_group(backend, store=store, rank=rank, world_size=ranks, device_id=device)
        if device is not None:
            reduce_in_place(torch.zeros(1, device=device))  # what cannot work fails here, before the model is loaded
    except RuntimeError as error:
        print(f"dunlin engine: rank {rank} of {ranks}: {error}", file=sys.stderr, flush=True)
        raise ValueError(f"{ranks} ranks cannot be joined by {backend}: {str(error).splitlines()[0]}") from None
