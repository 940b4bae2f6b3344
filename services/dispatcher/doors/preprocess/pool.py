"""Preprocesses request bodies: small ones on the event loop, one per turn of it, large ones in helper processes.

No body may stop the event loop: parsing, chat templates and tokenizers hold the interpreter's lock for a time that
grows with the text. Owns the lanes and the memory budget for bodies; knows neither HTTP nor gRPC.
"""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from dunlin.messages.door import RejectionCode
from services.dispatcher.admission.refusals import STOPPING_TEXT, DoorError
from services.dispatcher.doors.generation.prompts import PromptEncoder
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.preprocess.helper import HelperProcess
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessed, Preprocessor


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Limits of one helper process, for bodies up to `most_bytes`.

    At most `most_calls` bodies run or wait in it; at most `room_bytes` of them are in memory, those still being
    received included. The process has the priority `nice`, and `within_s` seconds for one body.
    """

    most_bytes: int
    most_calls: int
    room_bytes: int
    nice: int
    within_s: float


LONG_LANE = LaneLimits(most_bytes=512 << 10, most_calls=64, room_bytes=32 << 20, nice=5, within_s=30.0)
"""For long prompts as usual clients send them: they never wait behind larger bodies."""
HUGE_LANE = LaneLimits(most_bytes=8 << 20, most_calls=8, room_bytes=64 << 20, nice=10, within_s=60.0)


@dataclass(frozen=True, slots=True)
class PreprocessLimits:
    """Bodies up to `inline_bytes` are preprocessed on the event loop, larger ones in the first lane that takes them."""

    inline_bytes: int = 8_192
    lanes: tuple[LaneLimits, ...] = (LONG_LANE, HUGE_LANE)


class PreprocessPool:
    """Preprocesses bodies. Owns a thread and a process for each lane, started with the first body for it.

    `decompressing` lets one compressed body at a time be inflated.
    """

    def __init__(self, model: ServedModel, prompts: PromptEncoder, limits: PreprocessLimits) -> None:
        self._limits = limits
        self._preprocessor = Preprocessor(model, prompts)
        self._lanes = [PreprocessLane(model, lane) for lane in limits.lanes]
        self.decompressing = asyncio.Lock()
        self._turn = asyncio.Lock()

    @property
    def calls_in_lanes(self) -> int:
        """Bodies that are in a helper process or wait for one."""
        return sum(lane.calls for lane in self._lanes)

    def reserve_memory(self, declared_bytes: int | None) -> "ReservedMemory":
        """A reservation, still empty, in the budget of the lane for so many bytes; None: the size is not known yet."""
        lane = self._lanes[-1] if declared_bytes is None else self._lane(declared_bytes)
        return ReservedMemory(lane.memory, self._limits.inline_bytes)

    async def read(self, kind: BodyKind, *parts: bytes) -> Preprocessed:
        """Preprocess a body, given in the parts in which it was received.

        Raises:
            InvalidField, MalformedRequest: see `Preprocessor.read`.
            DoorError: too many large bodies at once, or a helper process that did not answer.
        """
        size = sum(map(len, parts))
        if size > self._limits.inline_bytes:
            return await self._lane(size).read(kind, parts)
        async with self._turn:
            # One body per turn of the loop: many that arrive at once hold up the streams no longer than one does.
            await asyncio.sleep(0)
            return self._preprocessor.read(kind, b"".join(parts))

    def shut_down(self) -> None:
        """End the helper processes; the bodies in them get a DoorError."""
        for lane in self._lanes:
            lane.shut_down()

    def _lane(self, size: int) -> "PreprocessLane":
        return next((lane for lane in self._lanes if size <= lane.most_bytes), self._lanes[-1])


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


class ReservedMemory:
    """One body's share of a lane's memory budget: `with pool.reserve_memory(size) as memory: memory.grow(size)`.

    Bodies up to `free_bytes` take nothing of the budget.
    """

    def __init__(self, budget: BodyMemory, free_bytes: int) -> None:
        self._budget = budget
        self._free_bytes = free_bytes
        self._bytes = 0

    def __enter__(self) -> "ReservedMemory":
        return self

    def __exit__(self, *ending: object) -> None:
        self._budget.used -= self._bytes

    def grow(self, size: int) -> None:
        """Reserve what the body needs now that it has `size` bytes.

        Raises:
            DoorError: the budget is used up.
        """
        more = size - self._bytes
        if size > self._free_bytes and more > 0:
            self._budget.reserve(more)
            self._bytes = size


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
