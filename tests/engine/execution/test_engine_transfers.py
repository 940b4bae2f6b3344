"""Transfers of one engine: how much is copied before a step begins, and what an end means for rooms."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.transfer.transfer_queue import TransferLimits
from dunlin.messages.engine import Transfer, TransferDone
from dunlin.messages.types import Payload, Region, TransferKind, TransferStatus, i64
from tests.engine.build import load, make_checkpoint
from tests.engine.commands import make_open, make_step
from tests.engine.execution.members import Member, meet_all, run_all
from tests.engine.execution.running import N, make_move, make_runner, map_host

LIMITS = RunnerLimits(transfers=TransferLimits(chunk_bytes=512, turn_bytes=1))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def loaded(directory: Path) -> LoadedModel:
    return load(directory)


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


def test_a_room_that_was_sent_is_answered_at_both_ends_and_empty_only_at_the_sender(directory: Path) -> None:
    """What came is not what was sent, if the checksum is another one: then it is empty there, too."""
    sender, receiver = meet_all([Member(number, directory, "torch") for number in range(2)])
    rows, content = [(1, range(4))], [torch.arange(8.0).view(4, 2)]
    sent = Transfer(
        5, TransferKind.SLAB_TO_PEER, 1, Region(0, 1, 0, 4), i64(), i64(), payload=Payload.ACTIVATION, room=3,
        peer=receiver.address, peer_handle=4,
    )  # fmt: skip
    for is_sound in (True, False):
        sender.rooms.put(3, rows, content)
        sender.tell(sent)
        run_all([sender])
        (done,) = sender.answers()
        assert isinstance(done, TransferDone)
        assert (done.ticket, done.status, sender.rooms.rows(3)) == (5, TransferStatus.OK, [])
        checksum = done.checksum ^ (not is_sound)
        receiver.tell(replace(sent, ticket=6, kind=TransferKind.PEER_TO_SLAB, room=4, checksum=checksum))
        run_all([receiver])
        (looked,) = receiver.answers()
        assert isinstance(looked, TransferDone)
        assert looked.status is (TransferStatus.OK if is_sound else TransferStatus.CORRUPT)
        assert receiver.rooms.rows(4) == (rows if is_sound else [])
