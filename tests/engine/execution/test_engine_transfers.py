"""Transfers beside steps: how much is copied before one begins."""

from pathlib import Path

import pytest

from dunlin.engine.decoder.loader import LoadedModel
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.transfer.transfer_queue import TransferLimits
from dunlin.messages.types import TransferKind
from tests.engine.build import load, make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.running import N, make_move, make_runner, map_host

LIMITS = RunnerLimits(transfers=TransferLimits(chunk_bytes=512, turn_bytes=1))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_checkpoint(tmp_path_factory.mktemp("model")))


def test_a_step_after_a_long_rest_begins_before_a_large_copy_is_done(loaded: LoadedModel, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    tier.write_bytes(bytes(1 << 20))
    now_s = [0.0]
    runner = make_runner(loaded, clock=lambda: now_s[0], limits=LIMITS)
    for message in (map_host(tier), make_open()):
        runner.receive(message)
    now_s[0] = 1000.0
    runner.receive(make_move(1, TransferKind.SLAB_TO_HOST, 1, N, (0, N)))
    runner.receive(make_step(1, (1, 0, N, 0)))
    assert runner.work(lambda: True) == [], "the step has begun, and paused; the copy goes on beside it"
    assert runner.steps.is_running
