"""A long prompt with an adapter, computed by a group: its tokens are those of one big engine with that adapter."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.decoder.lora.loading import load_adapters
from dunlin.model.lora.adapter import load_adapter
from tests.engine.adapter_files import write_adapter
from tests.engine.build import load, make_checkpoint
from tests.engine.execution.running import generate, make_runner
from tests.services.engine_cluster import EngineMemory
from tests.services.test_group_engines import DECODES, TEXT, Group


@dataclass(frozen=True)
class Adapted:
    """Members' memories with the same two adapters, the digests, and what one engine says with none and with each."""

    memories: list[EngineMemory]
    digests: list[str]
    expected: dict[str, list[int]]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    folder = tmp_path_factory.mktemp("model")
    checkpoint = make_checkpoint(folder, seed=3, layers=2)
    folders = [write_adapter(folder / str(seed), checkpoint, seed=seed) for seed in (1, 2)]

    def with_adapters(model: LoadedModel) -> LoadedModel:
        known: dict[str, Path] = {load_adapter(each, model.config).digest: each for each in folders}
        return replace(model, decoder=model.decoder.with_adapters(load_adapters(known, model.config, torch.float32)))

    loaded = [EngineMemory.load(checkpoint) for _ in range(3)]
    memories = [replace(each, model=with_adapters(each.model)) for each in loaded]
    alone = with_adapters(load(checkpoint, deterministic=True))
    digests = [*alone.decoder.adapters.numbers]
    expected = {each: generate(make_runner(alone), 1, TEXT, DECODES, 0, adapter=each) for each in ("", *digests)}
    yield Adapted(memories, digests, expected)
    for memory in loaded:
        memory.model.arena.close()


@pytest.mark.parametrize("by_ring", [False, True])
@pytest.mark.parametrize("which", [0, 1])
def test_a_group_says_what_one_engine_says_with_the_adapter(adapted: Adapted, which: int, by_ring: bool) -> None:
    digest = adapted.digests[which]
    group = Group(adapted.memories, adapter=digest, by_ring=by_ring)
    group.run()
    assert group.leader.tokens == adapted.expected[digest]
    assert len({tuple(text) for text in adapted.expected.values()}) == 3
