"""Preprocesses request bodies: small ones on the event loop, one per turn of it, large ones in helper processes.

No body may stop the event loop: parsing, chat templates and tokenizers hold the interpreter's lock for a time that
grows with the text. Owns the lanes and the memory budget for bodies; knows neither HTTP nor gRPC.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from services.dispatcher.doors.generation.prompts import PromptEncoder
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.preprocess.grammar_checks import GrammarChecks
from services.dispatcher.doors.preprocess.lanes import BodyMemory, LaneLimits, PreprocessLane
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessed, Preprocessor

LONG_LANE = LaneLimits(most_bytes=512 << 10, most_calls=64, room_bytes=32 << 20, nice=5, within_s=30.0)
"""For long prompts as usual clients send them: they never wait behind larger bodies."""
HUGE_LANE = LaneLimits(most_bytes=8 << 20, most_calls=8, room_bytes=64 << 20, nice=10, within_s=60.0)
GRAMMAR_LANE = LaneLimits(most_bytes=1 << 20, most_calls=64, room_bytes=0, nice=5, within_s=10.0)
"""For grammars that were not compiled before: a costly one keeps no long prompt waiting."""


@dataclass(frozen=True, slots=True)
class PreprocessLimits:
    """Bodies up to `inline_bytes` are preprocessed on the event loop, larger ones in the first lane that takes them.

    The grammars of all are compiled in the lane `grammars`.
    """

    inline_bytes: int = 8_192
    lanes: tuple[LaneLimits, ...] = (LONG_LANE, HUGE_LANE)
    grammars: LaneLimits = GRAMMAR_LANE


class PreprocessPool:
    """Preprocesses bodies. Owns a thread and a process for each lane, started with the first body for it.

    `decompressing` lets one compressed body at a time be inflated.
    """

    def __init__(self, model: ServedModel, prompts: PromptEncoder, limits: PreprocessLimits) -> None:
        self._limits = limits
        self._preprocessor = Preprocessor(model, prompts)
        self._lanes = [PreprocessLane(model, lane) for lane in limits.lanes]
        self._grammars = GrammarChecks(PreprocessLane(model, limits.grammars))
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
            InvalidField, MalformedRequest: see `Preprocessor.read`; InvalidField also for a grammar that does not
                compile.
            DoorError: too many large bodies or grammars at once, or a helper process that did not answer.
        """
        preprocessed = await self._read(kind, parts)
        request = preprocessed.request
        if request.settings.sampling.grammar is not None and preprocessed.prompts:
            await self._grammars.check(request.grammar_field, request.settings.sampling.grammar)
        return preprocessed

    async def _read(self, kind: BodyKind, parts: Sequence[bytes]) -> Preprocessed:
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
        self._grammars.shut_down()

    def _lane(self, size: int) -> "PreprocessLane":
        return next((lane for lane in self._lanes if size <= lane.most_bytes), self._lanes[-1])


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
