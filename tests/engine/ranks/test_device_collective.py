"""Between devices parts are added and gathered by torch's process group; here by gloo, over memory of the host."""

import os
import subprocess
import sys

import pytest
import torch

from dunlin.engine.ranks.collective import Collective
from dunlin.engine.ranks.device_collective import DeviceCollective, open_process_group

PROGRAM = """
import sys, torch
from dunlin.engine.ranks.device_collective import gather_parts, open_process_group, reduce_in_place

rank, ranks, store = map(int, sys.argv[1:])
open_process_group(store, rank, ranks, None, "gloo")
part = torch.arange(6.0).reshape(2, 3) + 10 * rank
total = reduce_in_place(part.clone())
assert torch.equal(total, ranks * torch.arange(6.0).reshape(2, 3) + 10 * sum(range(ranks))), total
whole = gather_parts(part, ranks)
assert torch.equal(whole, torch.stack([torch.arange(6.0).reshape(2, 3) + 10 * each for each in range(ranks)])), whole
turned = gather_parts(part.t(), ranks)
assert torch.equal(turned[1], part.t() + 10 * (1 - rank)), turned
assert gather_parts(torch.tensor([rank, 7]), ranks).tolist() == [[each, 7] for each in range(ranks)]
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_are_added_and_gathered(ranks: int) -> None:
    store = os.memfd_create("store")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(ranks), str(store)], pass_fds=[store], env=environment
        )
        for rank in range(ranks)
    ]
    assert [each.wait(300) for each in started] == [0] * ranks
    os.close(store)


def test_what_cannot_be_joined_is_refused_in_words() -> None:
    """A build of torch without CUDA has no NCCL."""
    if torch.distributed.is_nccl_available():
        pytest.skip("this torch has NCCL")
    store = os.memfd_create("store")
    with pytest.raises(ValueError, match=r"2 ranks cannot be joined by nccl: .*NCCL"):
        open_process_group(store, 0, 2, None)
    os.close(store)


def test_tensors_of_the_host_go_the_hosts_way() -> None:
    class Host:
        rank, ranks = 1, 2

        def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
            return part + 1

        def all_gather(self, part: torch.Tensor) -> torch.Tensor:
            return torch.stack([part, part])

    host: Collective = Host()
    both = DeviceCollective(host)
    assert (both.rank, both.ranks) == (1, 2)
    assert both.all_reduce(torch.tensor([1.0])).tolist() == [2.0]
    assert both.all_gather(torch.tensor([1.0])).tolist() == [[1.0], [1.0]]
