"""The engine's state of one sequence: its tokens, its sampling parameters, and the slots of its KV.

Knows no step and no other sequence. The instance owns the slots; this only remembers which were named.
"""

import torch
from torch import Tensor

from dunlin.engine.attention.base import KvLocation
from dunlin.messages.engine import Open
from dunlin.messages.types import FinishReason


class SlotMap:
    """Position → slot of one sequence, without gaps. One run of slots costs two integers; anything else a tensor."""

    def __init__(self) -> None:
        self.length = 0
        self._first = 0
        self._slots: Tensor | None = None

    def assign(self, position: int, start: int, length: int) -> None:
        """Positions from `position` lie in the slots from `start`; later positions, if any were known, are forgotten.

        :raises ValueError: the positions before are unknown.
        """
        if position > self.length:
            raise ValueError(f"position {position} is written, but slots are known up to {self.length} only")
        if position == 0:
            self._first, self._slots = start, None
        elif self._slots is None and start != self._first + position:
            self._slots = torch.arange(self._first, self._first + 2 * (position + length))
        if self._slots is not None:
            self._slots = _with_room(self._slots, position + length)
            torch.arange(start, start + length, out=self._slots[position : position + length])
        self.length = position + length

    def kv_location(self, length: int) -> KvLocation:
        """Where the first `length` tokens lie."""
        return KvLocation(length, self._first, None if self._slots is None else self._slots[:length])

    def slots(self, start: int, stop: int) -> list[int]:
        """The slots of positions `[start, stop)`."""
        if self._slots is None:
            return list(range(self._first + start, self._first + stop))
        slots: list[int] = self._slots[start:stop].tolist()
        return slots


def _with_room(slots: Tensor, length: int) -> Tensor:
    if length <= len(slots):
        return slots
    return torch.cat([slots, slots.new_zeros(2 * length - len(slots))])


class EngineSequence:
    """One open sequence. `tokens` is the prompt followed by everything generated."""

    def __init__(self, opened: Open, max_positions: int) -> None:
        self.tokens = list(opened.tokens)
        self.prompt_tokens = opened.prompt_tokens
        self.sampling = opened.sampling
        self.slots = SlotMap()
        self.finish = FinishReason.RUNNING
        self._stop_ids = frozenset(opened.stop_ids)
        self._tokens_max = min(opened.prompt_tokens + opened.max_tokens, max_positions)
        for start, length in zip(opened.extent_start, opened.extent_length, strict=True):
            self.slots.assign(self.slots.length, start, length)

    @property
    def ended(self) -> bool:
        return self.finish is not FinishReason.RUNNING

    def fail(self) -> None:
        """End without a next token: its logits are not finite."""
        self.finish = FinishReason.ERROR

    def append(self, token: int) -> FinishReason:
        """Append a sampled token; returns whether it was the last."""
        self.tokens.append(token)
        if token in self._stop_ids:
            self.finish = FinishReason.STOP
        elif len(self.tokens) >= self._tokens_max:
            self.finish = FinishReason.LENGTH
        return self.finish
