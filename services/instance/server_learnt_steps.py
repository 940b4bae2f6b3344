"""Keeps what the core has learnt of its engine's steps: an outlet that takes `SaveLearntSteps` and writes a store."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import dunlin
from dunlin.cost.step_fit import LearntSteps
from dunlin.cost.store import ProfileKey, ProfileStore, StoreError
from dunlin.effects import Message
from services.instance.scheduling.step_times import SaveLearntSteps

_log = logging.getLogger(__name__)

Save = Callable[[LearntSteps], None]


class LearntStepsWriter:
    """Owns the newest that is not written yet. Writes in a thread, one after the other, as disks are slow and stores
    locked; what comes meanwhile replaces what waits. One that fails is logged and tried again with the next.
    """

    def __init__(self, save: Save) -> None:
        self._save = save
        self._newest: LearntSteps | None = None
        self._writing: asyncio.Task[None] | None = None

    def send(self, message: Message) -> bool:
        """Write it soon. Never full."""
        if isinstance(message, SaveLearntSteps):
            self._newest = message.learnt
            if self._writing is None or self._writing.done():
                self._writing = asyncio.get_running_loop().create_task(self._write())
        return True

    def close(self, reason: str) -> None:
        """Write no more. What is being written is."""
        self._newest = None

    async def written(self) -> None:
        """Return when nothing is being written."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        while (learnt := self._newest) is not None:
            self._newest = None
            try:
                await asyncio.to_thread(self._save, learnt)
            except (StoreError, OSError) as error:
                _log.warning("what was learnt of steps is not kept: %s", error)


def saver(path: Path, key: ProfileKey) -> Save:
    """A function that keeps it in the store at `path`. Raises StoreError or OSError when it is called."""

    def save(learnt: LearntSteps) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ProfileStore(path) as store:
            store.save_learnt(key, dunlin.__version__, datetime.now(UTC).isoformat(timespec="seconds"), learnt)

    return save
