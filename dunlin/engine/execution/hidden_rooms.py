"""Hidden states between two steps that compute different layers of the same tokens. Bounded in bytes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dunlin.engine.execution.step_batch import StepError, StepRow


class HiddenRooms:
    """Owns the rooms by number: hidden states of rows, by sequence and first token. A step takes out what it reads."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rooms: dict[int, dict[tuple[int, int], Tensor]] = {}
        self.size_bytes = 0

    def put(self, room: int, sequence: int, start: int, hidden: Tensor) -> None:
        """Keep the states `[tokens, hidden]` of a sequence's tokens from `start` on: `check` before, there is room."""
        rows = self._rooms.setdefault(room, {})
        before = rows.get((sequence, start))
        self.size_bytes -= 0 if before is None else before.nbytes
        rows[sequence, start] = hidden
        self.size_bytes += hidden.nbytes

    def check(self, size_bytes: int) -> None:
        """:raises StepError: so much more does not fit."""
        if self.size_bytes + size_bytes > self._bytes_max:
            raise StepError(f"{size_bytes} bytes of hidden states beside {self.size_bytes} of {self._bytes_max}")

    def take(self, room: int, rows: Sequence[StepRow]) -> Tensor:
        """The states of the rows, packed; they are not kept.

        :raises StepError: the room lacks a row's states, or has those of other tokens; nothing was taken.
        """
        held = self._rooms.get(room, {})
        for row in rows:
            found = held.get((row.sequence, row.start))
            if found is None or len(found) != row.tokens:
                what = f"tokens {row.start} to {row.stop} of sequence {row.sequence}"
                raise StepError(f"room {room} has no hidden states of {what}")
        taken = [held.pop((row.sequence, row.start)) for row in rows]
        if not held:
            self._rooms.pop(room, None)
        self.size_bytes -= sum(each.nbytes for each in taken)
        return torch.cat(taken)

    def forget(self, sequence: int) -> None:
        """The sequence is closed."""
        for room in list(self._rooms):
            for key in [key for key in self._rooms[room] if key[0] == sequence]:
                self.size_bytes -= self._rooms[room].pop(key).nbytes
            if not self._rooms[room]:
                del self._rooms[room]
