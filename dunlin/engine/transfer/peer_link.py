"""What goes between this engine and one peer while a step of both runs: messages, layer by layer, in order.

What is to be sent waits here until the peer's room has place for it; of what the peer sent only what belongs to the
layer that is computed is taken out, so either side is bounded by one layer.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.room_pipe import PipeReader, PipeWriter

_HEADER_BYTES = 24
"""Layer, part and size of a message, a word each."""
_PACKED_BYTES = 1 << 16
"""A message of at most so many bytes is written at once: a copy costs less than to enter the peer's room again."""


class PeerPart(IntEnum):
    """QUERY: queries to be answered. ANSWER: partial results, and K/V of blocks held in part. KEYS: a stripe's K/V."""

    QUERY = 0
    ANSWER = 1
    KEYS = 2


_PARTS = frozenset(map(int, PeerPart))


@dataclass(frozen=True, slots=True)
class _Arriving:
    part: PeerPart
    content: Bytes


class PeerLink:
    """Owns the two pipes of a step with one peer. `sizes`: bytes of each part that the peer will send in a layer;
    `is_met()`: the peer has neither been forgotten nor shut this engine out.
    """

    def __init__(self, reader: PipeReader, writer: PipeWriter, is_met: Callable[[], bool]) -> None:
        self.sizes: dict[PeerPart, int] = {}
        self._reader = reader
        self._writer = writer
        self._is_met = is_met
        self._outbox: deque[Bytes] = deque()
        self._header = np.empty(_HEADER_BYTES, dtype=np.uint8)
        self._header_bytes = 0
        self._arriving: _Arriving | None = None
        self._content_bytes = 0
        self._is_over = False

    @property
    def is_sent(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._outbox

    @property
    def is_given_up(self) -> bool:
        """Whether one side has given it up: nothing more comes, and nothing more is sent."""
        return self._is_over or self._reader.is_given_up

    @property
    def size_bytes(self) -> int:
        """What waits to be sent, and the message that is arriving."""
        arriving = 0 if self._arriving is None else len(self._arriving.content)
        return arriving + sum(map(len, self._outbox))

    def set_aside(self) -> None:
        """Make the own room free for another exchange: this one is suspended on both sides."""
        self._reader.set_aside()

    def open(self) -> None:
        """Take the own room again, if it was set aside."""
        self._reader.open()

    def give_up(self) -> None:
        """Tell the peer that nothing more comes."""
        if self._is_over:
            return
        self._is_over = True
        self._outbox.clear()
        try:
            self._writer.give_up()
        except TransferError:  # it is gone itself
            pass

    def send(self, layer: int, part: PeerPart, contents: Sequence[Tensor]) -> None:
        """Queue a message of a layer, unless the link was given up."""
        if self._is_over:
            return
        flat = [each.contiguous().view(torch.uint8).cpu().numpy().reshape(-1) for each in contents if each.numel()]
        size = sum(map(len, flat))
        message = np.empty(_HEADER_BYTES + (size if size <= _PACKED_BYTES else 0), dtype=np.uint8)
        message[:_HEADER_BYTES].view(np.int64)[:] = layer, part, size
        if size > _PACKED_BYTES:
            self._outbox.extend((message, *flat))
            return
        at = _HEADER_BYTES
        for each in flat:
            message[at : at + len(each)] = each
            at += len(each)
        self._outbox.append(message)

    def flush(self) -> bool:
        """Write what the peer's room has place for; returns whether that was anything.

        :raises TransferError: the peer is gone.
        """
        worked = False
        while self._outbox and (count := self._writer.write(self._outbox[0])):
            worked = True
            rest = self._outbox.popleft()[count:]
            if len(rest):
                self._outbox.appendleft(rest)
        return worked

    def check_met(self) -> None:
        """While nothing comes and nothing can be written. :raises TransferError: the peer is gone."""
        if not self._is_met():
            raise TransferError("the peer is gone")

    def poll(self, layer: int) -> Iterator[tuple[PeerPart, Bytes]]:
        """The messages of the layer that have arrived whole.

        :raises TransferError: the peer computes something else than this engine's step says.
        """
        while True:
            self._header_bytes += self._reader.read_into(self._header[self._header_bytes :])
            if self._header_bytes < len(self._header):
                return
            if self._arriving is None:
                found, part, size = map(int, self._header.view(np.int64))
                if found > layer:
                    return
                self._begin(layer, found, part, size)
            arriving = self._arriving
            assert arriving is not None
            self._content_bytes += self._reader.read_into(arriving.content[self._content_bytes :])
            if self._content_bytes < len(arriving.content):
                return
            self._header_bytes = self._content_bytes = 0
            self._arriving = None
            yield arriving.part, arriving.content

    def _begin(self, layer: int, found: int, part: int, size: int) -> None:
        if found != layer or part not in _PARTS or self.sizes.get(PeerPart(part)) != size:
            raise TransferError(f"part {part} of {size} bytes for layer {found}, where layer {layer} has {self.sizes}")
        self._arriving = _Arriving(PeerPart(part), np.empty(size, dtype=np.uint8))
