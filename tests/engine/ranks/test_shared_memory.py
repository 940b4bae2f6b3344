"""Sums and parts that ranks exchange through shared memory."""

import multiprocessing
import os
from functools import partial
from multiprocessing.connection import Connection

import pytest
import torch
from torch import Tensor

from dunlin.engine.ranks import shared_memory
from dunlin.engine.ranks.collective import ONE_RANK
from dunlin.engine.ranks.shared_memory import SharedMemoryCollective
from dunlin.engine.ranks.shared_words import SharedWords
from tests.engine.ranks.two_ranks import make_collectives, together

torch.set_num_threads(1)


def parts_of(ranks: int, *shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(shape))
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(ranks)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_has_the_sum_in_the_order_of_the_ranks(ranks: int, dtype: torch.dtype) -> None:
    parts = parts_of(ranks, 7, 96, dtype=dtype)
    sums = together(*(partial(each.all_reduce, parts[each.rank]) for each in make_collectives(ranks)))
    expected = parts[0].float()
    for part in parts[1:]:
        expected = expected + part.float()
    assert all(torch.equal(each, expected.to(dtype)) for each in sums)
    assert sums[0].dtype is dtype


def test_a_part_larger_than_a_room_goes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "ROOM_BYTES", 256)
    parts = parts_of(2, 13, 17)
    pair = make_collectives()
    sums = together(*(partial(each.all_reduce, parts[each.rank]) for each in pair))
    assert torch.equal(sums[0], parts[0] + parts[1])
    gathered = together(*(partial(each.all_gather, parts[each.rank]) for each in pair))
    assert all(torch.equal(each, torch.stack(parts)) for each in gathered)


def test_parts_keep_their_dtype_and_may_lie_scattered() -> None:
    parts = [torch.arange(12).view(3, 4).t(), torch.arange(12, 24).view(3, 4).t()]
    gathered = together(*(partial(each.all_gather, parts[each.rank]) for each in make_collectives()))
    assert torch.equal(gathered[1], torch.stack(parts))
    assert gathered[1].dtype is torch.int64


def test_nothing_is_exchanged_of_no_rows() -> None:
    (first, _) = make_collectives()
    assert first.all_reduce(torch.empty(0, 8)).shape == (0, 8)


def test_one_rank_has_all_there_is() -> None:
    (part,) = parts_of(1, 3, 4)
    assert ONE_RANK.all_reduce(part) is part
    assert torch.equal(ONE_RANK.all_gather(part), part[None])


def many_sums(each: SharedMemoryCollective) -> Tensor:
    """A long run in which each sum depends on the one before."""
    generator = torch.Generator().manual_seed(each.rank)
    state = torch.zeros(5)
    for _ in range(300):
        state = each.all_reduce(state / 4 + torch.randn(5, generator=generator))
    return state


def other_rank(fd: int, answers: Connection) -> None:
    torch.set_num_threads(1)
    answers.send(many_sums(SharedMemoryCollective(fd, SharedWords(fd, 2), 1, 2)).tolist())


def test_two_processes_compute_alike_and_as_before() -> None:
    context = multiprocessing.get_context("fork")
    found = []
    for _ in range(2):
        fd = os.memfd_create("ranks")
        ours, theirs = context.Pipe()
        process = context.Process(target=other_rank, args=(fd, theirs))
        process.start()
        try:
            found.append(many_sums(SharedMemoryCollective(fd, SharedWords(fd, 2, process.is_alive), 0, 2)))
            assert ours.recv() == found[-1].tolist()
        finally:
            process.kill()
            process.join()
    assert torch.equal(found[0], found[1])
