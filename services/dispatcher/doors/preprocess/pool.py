"""Where a call's bytes are read: small ones on the event loop, one a turn of it, large ones in helper processes.

Whatever a client sends, the event loop must not stop for it: parsing, templates and tokenizers hold the interpreter's
lock for as long as the text is. Owns the lanes and the room for bodies; knows neither HTTP nor gRPC.
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
    """One helper process, for calls up to `most_bytes`. At most `most_calls` run or wait in it, and at most
    `room_bytes` of such calls are held, those still being received included. It has the priority `nice`, and
    `within_s` for one call.
    """

    most_bytes: int
    most_calls: int
    room_bytes: int
    nice: int
    within_s: float


LONG_LANE = LaneLimits(most_bytes=512 << 10, most_calls=64, room_bytes=32 << 20, nice=5, within_s=30.0)
"""Long prompts as honest clients send them: nothing that is larger stands before them."""
HUGE_LANE = LaneLimits(most_bytes=8 << 20, most_calls=8, room_bytes=64 << 20, nice=10, within_s=60.0)


@dataclass(frozen=True, slots=True)
class PreprocessLimits:
    """Calls up to `inline_bytes` are read on the event loop, longer ones in the first lane that takes so much."""

    inline_bytes: int = 8_192
    lanes: tuple[LaneLimits, ...] = (LONG_LANE, HUGE_LANE)


class PreprocessPool:
    """Reads calls. Owns a thread and a process for each lane, started when the first call for it comes."""

    def __init__(self, model: ServedModel, prompts: PromptEncoder, limits: PreprocessLimits) -> None:
        self._limits = limits
        self._preprocessor = Preprocessor(model, prompts)
        self._lanes = [PreprocessLane(model, lane) for lane in limits.lanes]
        self.decompressing = asyncio.Lock()
        self._turn = asyncio.Lock()

    @property
    def calls_in_lanes(self) -> int:
        """Calls that a helper process reads, or that wait for one."""
        return sum(lane.calls for lane in self._lanes)

    def reserve_memory(self, declared_bytes: int | None) -> "ReservedMemory":
        """Room for a body of so many bytes; None: not known yet."""
        lane = self._lanes[-1] if declared_bytes is None else self._lane(declared_bytes)
        return ReservedMemory(lane.memory, self._limits.inline_bytes)

    async def read(self, kind: BodyKind, *parts: bytes) -> Preprocessed:
        """What the bytes ask, in the parts in which they came.

        Raises:
            BadField, Malformed: see `Preprocessor.read`.
            DoorError: too many large calls at once, or a helper process that did not answer.
        """
        size = sum(map(len, parts))
        if size > self._limits.inline_bytes:
            return await self._lane(size).read(kind, parts)
        async with self._turn:
            # One a turn of the loop: a crowd that comes at once stops the streams as little as one of it.
            await asyncio.sleep(0)
            return self._preprocessor.read(kind, b"".join(parts))

    def shut_down(self) -> None:
        """End the helpers; what they read for gets an error."""
        for lane in self._lanes:
            lane.shut_down()

    def _lane(self, size: int) -> "PreprocessLane":
        return next((lane for lane in self._lanes if size <= lane.most_bytes), self._lanes[-1])


class BodyMemory:
    """Memory for large bodies. `used` bytes are held of at most `most`."""

    def __init__(self, most: int) -> None:
        self.used = 0
        self._most = most

    def reserve(self, size: int) -> None:
        """Hold so much more.

        Raises:
            DoorError: there is not so much left.
        """
        if self.used + size > self._most:
            text = f"large requests of {self.used} bytes are being read already; at most {self._most} may be at once"
            raise DoorError(RejectionCode.FULL, text, retry_after_s=1.0)
        self.used += size


class ReservedMemory:
    """A part of a room while it is in use: `with intake.hold(size) as held`. The first `free_bytes` need none."""

    def __init__(self, room: BodyMemory, free_bytes: int) -> None:
        self._room = room
        self._free_bytes = free_bytes
        self._bytes = 0

    def __enter__(self) -> "ReservedMemory":
        return self

    def __exit__(self, *ending: object) -> None:
        self._room.used -= self._bytes

    def grow(self, size: int) -> None:
        """The body has `size` bytes by now.

        Raises:
            DoorError: there is no room for it.
        """
        more = size - self._bytes
        if size > self._free_bytes and more > 0:
            self._room.reserve(more)
            self._bytes = size


class PreprocessLane:
    """Owns one helper process and the thread that speaks with it: calls go through one after the other."""

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
        """As `PreprocessPool.read`. A client that leaves gives up its place in the queue; what runs counts to its
        end."""
        with self._lock:
            if self.calls >= self._limits.most_calls:
                text = f"{self.calls} large requests are being read already, the most that may be at once"
                raise DoorError(RejectionCode.FULL, text, retry_after_s=1.0)
            self.calls += 1
        try:
            job = self._thread.submit(self._helper.read, kind, parts)
        except RuntimeError as error:  # after `shut`
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
        """End the helper, let go of the thread."""
        self._is_shut = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._helper.kill()

    def _on_done(self, job: "Future[Preprocessed] | None" = None) -> None:
        with self._lock:  # it comes from the lane's thread
            self.calls -= 1


def _stopping() -> DoorError:
    return DoorError(RejectionCode.UNAVAILABLE, STOPPING_TEXT, retry_after_s=1.0)
