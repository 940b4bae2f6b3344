"""An engine of two ranks answers like the model of an engine, event by event, in all but changes of layers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dunlin.engine.execution.limits import RunnerLimits
from dunlin.messages.engine import MapHost
from tests.conformance.sides import MAX_QUEUED, PARKED_ROWS, RunnerSide, TwinSide
from tests.conformance.test_conformance import (
    FORBIDDEN,
    LAYERS,
    OPS,
    TIER_BYTES,
    Pair,
    compare_stages,
    conduct,
    loaded_from,
    refuse,
    token_bytes,
)
from tests.engine.build import make_checkpoint
from tests.engine.ranks.runners import RankedRunner

Sides = tuple["RankedSide", TwinSide, int]


class RankedSide(RunnerSide):
    """Two ranks over a tiny checkpoint."""

    def __init__(self, runner: Any, tier: Path) -> None:
        self.runner = runner
        self.runner.receive(MapHost(str(tier), TIER_BYTES, 1))
        self.events = []


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=LAYERS)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tier") / "tier"
    path.write_bytes(bytes(TIER_BYTES))
    return path


@contextmanager
def ranked_sides(directory: Path, tier: Path, on_devices: bool = False) -> Iterator[Sides]:
    """Both engines, and a token's KV in bytes: what the model knows of it is that of one rank."""
    limits = RunnerLimits(steps=MAX_QUEUED, parked_rows=PARKED_ROWS)
    runner = RankedRunner(directory, limits, on_devices=on_devices)
    with loaded_from(directory) as loaded:
        yield RankedSide(runner, tier), TwinSide(loaded, TIER_BYTES), token_bytes(loaded)
    runner.close()


@pytest.mark.parametrize("on_devices", [False, True])
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    ops=st.lists(
        st.tuples(st.sampled_from([op for op in OPS if op != "remap"]), st.integers(0, 99), st.integers(0, 99)),
        min_size=15,
        max_size=60,
    )
)
def test_both_answer_alike(directory: Path, tier: Path, on_devices: bool, ops: list[tuple[str, int, int]]) -> None:
    with ranked_sides(directory, tier, on_devices) as sides:
        conduct(Pair(*sides), ops)


def test_stages_in_one_engine_are_answered_alike(directory: Path, tier: Path) -> None:
    with ranked_sides(directory, tier) as (runner, twin, _):
        compare_stages(runner, twin)


@pytest.mark.parametrize("commands", FORBIDDEN.values(), ids=list(FORBIDDEN))
def test_what_the_model_refuses_ranks_refuse(directory: Path, tier: Path, commands: tuple[Any, ...]) -> None:
    with ranked_sides(directory, tier) as (runner, twin, _):
        refuse(runner, twin, commands)
