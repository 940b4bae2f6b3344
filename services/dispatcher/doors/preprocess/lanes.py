"""A lane: one helper process, the thread that waits for it, and the bounds of what may wait and lie in memory."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from dunlin.messages.door import RejectionCode
from services.dispatcher.admission.refusals import STOPPING_TEXT, DoorError
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.preprocess.helper import HelperProcess
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessed


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Limits of one helper process, for bodies up to `most_bytes`.

    At most `most_calls` bodies run or wait in it; at most `room_bytes` of them are in memory, those still being
    received included. The process has the priority `nice`, and `within_s` seconds for one body once it is ready for it.
    """

    most_bytes: int
    most_calls: int
    room_bytes: int
    nice: int
    within_s: float


class BodyMemory:
    """A lane's memory budget: `used` bytes of at most `most` are reserved."""

    def __init__(self, most: int) -> None:
        self.used = 0
        self._most = most

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes more.

        Raises:
            DoorError: fewer are left.
        """
        if self.used + size > self._most:
            text = f"large requests of {self.used} bytes are being read already; at most {self._most} may be at once"
            raise DoorError(RejectionCode.FULL, text, retry_after_s=1.0)
        self.used += size


class PreprocessLane:
    """Owns one helper process and the thread that waits for it: bodies go through one after the other."""

    def __init__(self, model: ServedModel, limits: LaneLimits) -> None:
        self.most_bytes = limits.most_bytes
        self.memory = BodyMemory(limits.room_bytes)
        self.calls = 0
        self._limits = limits
        self._is_shut = False
        self._lock = threading.Lock()
        self._helper = HelperProcess(model, limits.nice, limits.within_s)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="preprocess")

    async def read(self, kind: BodyKind, parts: Sequence[bytes]) -> Preprocessed:
        """As `PreprocessPool.read`. A cancelled caller's body leaves the queue; one in the helper counts to its end."""
        with self._lock:
            if self.calls >= self._limits.most_calls:
                text = f"{self.calls} large requests are being read already, the most that may be at once"
                raise DoorError(RejectionCode.FULL, text, retry_after_s=1.0)
            self.calls += 1
        try:
            job = self._thread.submit(self._helper.read, kind, parts)
        except RuntimeError as error:  # after `shut_down`
            self._on_done()
            raise _stopping() from error
        job.add_done_callback(self._on_done)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if self._is_shut:
                raise _stopping() from None
            raise

    def shut_down(self) -> None:
        """Kill the helper process and release the thread."""
        self._is_shut = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._helper.kill()

    def _on_done(self, job: "Future[Preprocessed] | None" = None) -> None:
        with self._lock:  # called from the lane's thread
            self.calls -= 1


def _stopping() -> DoorError:
    return DoorError(RejectionCode.UNAVAILABLE, STOPPING_TEXT, retry_after_s=1.0)
