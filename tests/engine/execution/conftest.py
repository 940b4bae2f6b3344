"""A checkpoint, an engine whose layers change, and the logits that it should have."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor

from tests.engine.build import make_checkpoint
from tests.engine.execution.remap_engine import ALL, FEWER, Engine


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=4)


@pytest.fixture
def engine(directory: Path) -> Iterator[Engine]:
    made = Engine(directory)
    for layer in ALL:
        made.mark(layer)
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(directory: Path) -> dict[tuple[int, ...], Tensor]:
    engine = Engine(directory)
    whole = engine.logits()
    engine.drop()
    some = engine.logits()
    engine.close()
    return {ALL: whole, FEWER: some}
