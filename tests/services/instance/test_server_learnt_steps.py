"""What an instance has learnt of its engine's steps is written in a thread, the newest in the end."""

import asyncio
import threading
from pathlib import Path

import pytest

import dunlin
from dunlin.cost.step_fit import LearntSteps, StepSums
from dunlin.cost.store import ProfileKey, ProfileStore, StoreError
from services.instance.scheduling.step_times import SaveLearntSteps
from services.instance.server_learnt_steps import LearntStepsWriter, saver

KEY = ProfileKey("tiny", "cpu", "threads=1")


def learnt(chunks: int) -> LearntSteps:
    return LearntSteps(StepSums(), StepSums(), chunks)


def test_it_comes_to_the_store(tmp_path: Path) -> None:
    async def run() -> None:
        writer = LearntStepsWriter(saver(tmp_path / "data" / "profiles.db", KEY))
        assert writer.send(SaveLearntSteps(learnt(5)))
        await writer.written()

    asyncio.run(run())
    with ProfileStore(tmp_path / "data" / "profiles.db") as store:
        assert store.learnt(KEY, dunlin.__version__) == learnt(5)


def test_what_waits_is_replaced_and_a_failure_is_said(caplog: pytest.LogCaptureFixture) -> None:
    written: list[int] = []
    is_writing, may_go = threading.Event(), threading.Event()

    def save(found: LearntSteps) -> None:
        is_writing.set()
        may_go.wait(10.0)
        written.append(found.with_decodes)
        if found.with_decodes == 1:
            raise StoreError("the disk is full")

    async def run() -> None:
        writer = LearntStepsWriter(save)
        writer.send(SaveLearntSteps(learnt(1)))
        await asyncio.to_thread(is_writing.wait, 10.0)
        for chunks in (2, 3):
            writer.send(SaveLearntSteps(learnt(chunks)))
        may_go.set()
        await writer.written()

    asyncio.run(run())
    assert written == [1, 3]
    assert "not kept: the disk is full" in caplog.text
