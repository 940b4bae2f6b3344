"""Ranks of one engine as threads of this process, which share memory as processes do."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.memory.arena import FILE_MEMORY
from dunlin.engine.device.base import EngineDevice
from dunlin.engine.ranks.collective import Collective
from dunlin.engine.ranks.numerics import rank_numerics
from dunlin.engine.ranks.shared_memory import SharedMemoryCollective
from dunlin.engine.ranks.shared_words import SharedWords
from tests.engine.build import FAST_BACKEND, ROW_KERNELS

T = TypeVar("T")


def make_collectives(ranks: int = 2, is_alive: Callable[[], bool] = lambda: True) -> list[SharedMemoryCollective]:
    """One for each rank, over the same new memory."""
    fd = os.memfd_create("ranks")
    return [SharedMemoryCollective(fd, SharedWords(fd, ranks, is_alive), rank, ranks) for rank in range(ranks)]


def together(*works: Callable[[], T]) -> list[T]:
    """Run the ranks' work at the same time; their results in order."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [each.result() for each in [pool.submit(work) for work in works]]


def load_ranks(directory: Path, ranks: int = 2, **options: Any) -> list[LoadedModel]:
    """Each rank's part of a model, joined; to be computed with at the same time. Options as of `load_parts`."""
    return load_parts(directory, make_collectives(ranks), **options)


def load_parts(
    directory: Path,
    joined: Sequence[Collective],
    *,
    deterministic: bool = False,
    dtype: str = "float32",
    devices: Sequence[EngineDevice] | None = None,
) -> list[LoadedModel]:
    """The part of each rank; on `devices` tokens are chosen there."""
    chosen = numerics.deterministic_numerics() if deterministic else numerics.fast_numerics(FAST_BACKEND, ROW_KERNELS)
    if devices is not None:
        device_sampling = pytest.importorskip(
            "dunlin.engine.decoder.sampling.device_sampling", exc_type=ModuleNotFoundError
        )
        chosen = replace(chosen, choose=device_sampling.choose_on_device)
    return [
        load_model(
            directory, dtype, 8 << 20, rank_numerics(chosen, each, on_device=devices is not None),
            os.memfd_create("test-arena"), source=FILE_MEMORY if devices is None else devices[each.rank].memory,
            collective=each,
        )
        for each in joined
    ]  # fmt: skip
