"""The engine's transit rooms: shared memory in which steps and peers leave what other steps read.

A room holds the rows that one step left (hidden states, or the tokens that it sampled), or what a peer sent of one. The
instance hands the rooms out; this is only where they lie. Room 0 is no room. Pages never written cost nothing.
"""

import mmap
import os
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.room_records import (
    END_BYTES,
    clear_records,
    end_of_records,
    read_records,
    record_bytes,
    room_offset,
    take_records,
    write_record,
)

RoomRow = tuple[int, range]
"""A row as rooms name it: its sequence, and the positions of its tokens. Members of a group number sequences alike."""


class TransitRooms:
    """Owns a memory file of `count` rooms of `room_bytes` each, numbered from 1."""

    def __init__(self, count: int = 32, room_bytes: int = 32 << 20) -> None:
        self.count = count
        self.room_bytes = room_bytes
        self.fd = os.memfd_create("dunlin-transit", os.MFD_CLOEXEC)
        self._closing = weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, count * room_bytes)
        self._bytes = np.frombuffer(mmap.mmap(self.fd, count * room_bytes), dtype=np.uint8)
        self._written: set[int] = set()

    def view(self, room: int, length_bytes: int) -> Bytes:
        """The first bytes of a room.

        :raises TransferError: there is no such room, or it is smaller.
        """
        start = room_offset(room, length_bytes, self.count, self.room_bytes)
        return self._bytes[start : start + length_bytes]

    def used_bytes(self, room: int) -> int:
        """What the records in a room take, their end included. :raises TransferError: there is no such room."""
        return end_of_records(self._whole(room)) + END_BYTES

    def check(self, room: int, contents: Sequence[int]) -> None:
        """:raises TransferError: rows of so many bytes each do not fit into the room."""
        more = sum(map(record_bytes, contents))
        if (used := self.used_bytes(room)) + more > self.room_bytes:
            raise TransferError(f"{more} bytes beside {used} in a transit room of {self.room_bytes}")

    def put(self, room: int, rows: Sequence[RoomRow], contents: Sequence[Tensor]) -> None:
        """Leave the rows' contents for another step. :raises TransferError: they do not fit."""
        memory, named = self._whole(room), set(rows)
        take_records(memory, [each for each in read_records(memory) if (each.sequence, each.tokens) in named])
        at = end_of_records(memory)
        for (sequence, tokens), content in zip(rows, contents, strict=True):
            flat = content.contiguous().view(torch.uint8).cpu().numpy().reshape(-1)
            at = write_record(memory, at, sequence, tokens, flat)
        self._written.add(room)

    def rows(self, room: int) -> list[RoomRow]:
        """The rows that lie in a room. :raises TransferError: what lies there are no records."""
        return [(each.sequence, each.tokens) for each in read_records(self._whole(room)) if not each.is_taken]

    def take(self, room: int, rows: Sequence[RoomRow], dtype: torch.dtype, width: int) -> Tensor:
        """The contents of the rows, `[tokens, width]`, packed; they are not kept.

        :raises TransferError: the room lacks a row, or has other tokens of it; nothing was taken.
        """
        memory = self._whole(room)
        held = {(each.sequence, each.tokens): each for each in read_records(memory) if not each.is_taken}
        size_bytes = width * dtype.itemsize
        for sequence, tokens in rows:
            found = held.get((sequence, tokens))
            if found is None or len(found.content) != len(tokens) * size_bytes:
                what = f"tokens {tokens.start} to {tokens.stop} of sequence {sequence}"
                raise TransferError(f"room {room} has nothing of {what}")
        taken = [held[row] for row in rows]
        content = torch.from_numpy(np.concatenate([each.content for each in taken])).view(dtype).view(-1, width)
        take_records(memory, taken)
        return content

    def clear(self, room: int) -> None:
        """Forget what lies in a room: it is elsewhere, or is not what it should be."""
        clear_records(self._whole(room))

    def forget(self, sequence: int) -> None:
        """The sequence is closed: what this engine left of it will not be read."""
        for room in list(self._written):
            memory = self._whole(room)
            take_records(memory, [each for each in read_records(memory) if each.sequence == sequence])
            if not end_of_records(memory):
                self._written.discard(room)

    def close(self) -> None:
        """Close the file; the memory goes with the last view of it."""
        self._closing()

    def _whole(self, room: int) -> Bytes:
        return self.view(room, self.room_bytes)
