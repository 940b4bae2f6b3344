"""One transfer's bytes, copied and hashed in chunks.

The hash is of the region's identity and the bytes that lie in the own memory: those that were written out, or those
that were written here, after the copy. So a checksum covers the very bytes used.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import xxhash

from dunlin.engine.transfer.host_tier import Bytes
from dunlin.kv.region_identity import signed_digest

PIECE_BYTES = 512 << 10
"""Copied and hashed at a time: small enough to be in the cache still when it is hashed."""

Guard = Callable[[], AbstractContextManager[None]]


class ChunkedCopy(Protocol):
    """A transfer's bytes, copied and hashed in chunks; see `RegionCopy`."""

    left_bytes: int

    @property
    def checksum(self) -> int: ...

    def copy_chunk(self, most_bytes: int) -> int: ...


class ByteCursor:
    """Goes through pieces of memory, from piece to piece, in steps of any size. A piece is whatever has a length in
    bytes and gives a part of itself for a slice: of host memory `Bytes`, of a device's a tensor.
    """

    def __init__(self, pieces: Iterator[Any]) -> None:
        self._pieces = pieces
        self._rest: Any = None

    def ahead(self, most: int) -> Any:
        """The next bytes that lie together, at most so many; None at the end."""
        if self._rest is None or not len(self._rest):
            self._rest = next(self._pieces, None)
        return None if self._rest is None else self._rest[:most]

    def skip(self, count: int) -> None:
        """Go on by so many of the bytes that `ahead` gave."""
        assert self._rest is not None
        self._rest = self._rest[count:]

    def take(self, count: int) -> Iterator[Any]:
        """The next `count` bytes, piece by piece; there are so many."""
        while count:
            piece = self.ahead(count)
            assert piece is not None
            yield piece
            self.skip(len(piece))
            count -= len(piece)


class RegionCopy:
    """The own bytes of a region and those of the other side, in the same order. `guard` is entered for each chunk: it
    raises where the other side may not be touched any more.
    """

    def __init__(
        self,
        identity: bytes,
        size_bytes: int,
        own: Iterator[Bytes],
        other: Iterator[Bytes] | None = None,
        *,
        to_own: bool = False,
        guard: Guard = nullcontext,
    ) -> None:
        """Without an `other` side nothing is copied: the own bytes are hashed."""
        self.left_bytes = size_bytes
        self._own = ByteCursor(own)
        self._other = None if other is None else ByteCursor(other)
        self._to_own = to_own
        self._guard = guard
        self._hasher = xxhash.xxh3_64(identity)

    @property
    def checksum(self) -> int:
        """The hash of the identity and the bytes so far, signed."""
        return signed_digest(self._hasher.intdigest())

    def copy_chunk(self, most_bytes: int) -> int:
        """Copy at most so many bytes; returns how many, which is 0 only at the end.

        :raises TransferError: the other side may not be touched any more.
        """
        stop = max(self.left_bytes - most_bytes, 0)
        before = self.left_bytes
        with self._guard():
            while self.left_bytes > stop:
                self.left_bytes -= self._copy_piece(min(self.left_bytes - stop, PIECE_BYTES))
        return before - self.left_bytes

    def _copy_piece(self, most_bytes: int) -> int:
        own = self._own.ahead(most_bytes)
        assert own is not None
        if self._other is not None:
            other = self._other.ahead(len(own))
            assert other is not None
            own = own[: len(other)]
            np.copyto(*((own, other) if self._to_own else (other, own)))
            self._other.skip(len(own))
        self._hasher.update(own.data)
        self._own.skip(len(own))
        return len(own)
