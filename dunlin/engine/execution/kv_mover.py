"""Copies KV between the slab and the node's host tier, a layer at a time, so that steps need not wait for a long one.

In the tier a region is its layers one after another, each `[token, 2, kv_heads, head_dim]`. The writer hashes the
region's identity and the bytes written; the reader copies first and hashes the wanted identity and its copy, so that a
checksum covers the very bytes used. Knows no step.
"""

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from dunlin.kv.region_identity import region_identity, signed_digest
from dunlin.messages.engine import MapHost, Transfer, TransferDone
from dunlin.messages.types import TransferKind, TransferStatus

Bytes = NDArray[np.uint8]


class KvMoveError(Exception):
    """A move that cannot be done; the text says why."""


class HostMapping:
    """The node's shared host tier, once mapped."""

    def __init__(self) -> None:
        self._bytes: Bytes | None = None

    def map(self, message: MapHost) -> None:
        """Map the kvstore's shared memory; an earlier one is forgotten.

        :raises OSError: it cannot be opened.
        :raises ValueError: it is smaller than the message says.
        """
        fd = os.open(message.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._bytes = np.frombuffer(mmap.mmap(fd, message.size_bytes), dtype=np.uint8)
        finally:
            os.close(fd)

    def host_view(self, offset_bytes: int, length_bytes: int) -> Bytes:
        """The bytes of one region.

        :raises KvMoveError: no tier is mapped or the region lies outside.
        """
        if self._bytes is None:
            raise KvMoveError("no host tier is mapped")
        if offset_bytes < 0 or length_bytes < 0 or offset_bytes + length_bytes > len(self._bytes):
            raise KvMoveError(
                f"{length_bytes} bytes at {offset_bytes} lie outside the host tier of {len(self._bytes)} bytes"
            )
        return self._bytes[offset_bytes : offset_bytes + length_bytes]


@dataclass
class _Pending:
    """A move under way: `pieces` copies a layer per step and ends with the checksum."""

    move: Transfer
    order: int
    started_s: float
    hasher: Any = field(default_factory=xxhash.xxh3_64)
    moved_bytes: int = 0
    busy_s: float = 0.0
    pieces: Iterator[int] | None = None


class KvMover:
    """Owns the moves that were asked for and have not been answered. The most urgent goes first, then the oldest."""

    def __init__(self, kv: Sequence[Tensor], slots: int, tier: HostMapping, clock: Callable[[], float]) -> None:
        self._kv = kv
        self._slots = slots
        self._kv_dtype = str(kv[0].dtype).removeprefix("torch.")
        self._tier = tier
        self._clock = clock
        self._pending: dict[int, _Pending] = {}
        self._count = 0
        self.copied_bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, move: int) -> bool:
        return move in self._pending

    def add(self, move: Transfer) -> None:
        """Queue a move between slab and host tier."""
        self._count += 1
        pending = self._pending[move.ticket] = _Pending(move, self._count, self._clock())
        pending.hasher.update(region_identity(move.region, self._kv_dtype, move.chain))

    def cancel(self, move: int) -> tuple[Transfer, TransferDone] | None:
        """Stop a move that has not landed; None if it has."""
        pending = self._pending.get(move)
        return None if pending is None else (pending.move, self._end(pending, TransferStatus.CANCELLED))

    def advance(self) -> tuple[Transfer, TransferDone] | None:
        """Copy one layer of the first move. Returns the move and its answer once it ended."""
        pending = min(self._pending.values(), key=lambda each: (each.move.priority, each.order))
        began_s = self._clock()
        try:
            if pending.pieces is None:
                pending.pieces = self._pieces(pending)
            copied = next(pending.pieces, None)
        except KvMoveError as error:
            return pending.move, self._end(pending, TransferStatus.FAILED, str(error))
        finally:
            pending.busy_s += self._clock() - began_s
        if copied is not None:
            pending.moved_bytes += copied
            self.copied_bytes += copied
            return None
        return pending.move, self._end(pending, self._verdict(pending))

    def _verdict(self, pending: _Pending) -> TransferStatus:
        host = pending.move.host
        read = pending.move.kind is TransferKind.HOST_TO_SLAB
        if read and host is not None and host.checksum != signed_digest(pending.hasher.intdigest()):
            return TransferStatus.CORRUPT
        return TransferStatus.OK

    def _end(self, pending: _Pending, status: TransferStatus, detail: str = "") -> TransferDone:
        del self._pending[pending.move.ticket]
        checksum = signed_digest(pending.hasher.intdigest())
        passed_s = self._clock() - pending.started_s
        return TransferDone(
            pending.move.ticket, status, checksum, pending.moved_bytes, passed_s, detail, pending.busy_s
        )

    def _pieces(self, pending: _Pending) -> Iterator[int]:
        """Copy layer by layer, yielding bytes copied."""
        move = pending.move
        host = self._room(move)
        copy = _from_host if move.kind is TransferKind.HOST_TO_SLAB else _to_host
        extents = list(zip(move.extent_start, move.extent_length, strict=True))
        offset = 0
        for layer in range(move.region.layer_start, move.region.layer_stop):
            before = offset
            for start, length in extents:
                slab = _bytes(self._kv[layer][start : start + length])
                copy(slab, host[offset : offset + len(slab)], pending.hasher)
                offset += len(slab)
            yield offset - before

    def _room(self, move: Transfer) -> Bytes:
        """The host side of a move, once everything that it names has been checked."""
        region = move.region
        if move.host is None:
            raise KvMoveError("the move names no host region")
        if not 0 <= region.layer_start < region.layer_stop <= len(self._kv):
            raise KvMoveError(f"layers {region.layer_start} to {region.layer_stop} are not held here")
        check_extents(move.extent_start, move.extent_length, self._slots)
        tokens = sum(move.extent_length)
        if tokens != region.stop - region.start:
            raise KvMoveError(f"slots for {tokens} tokens are named, the region has {region.stop - region.start}")
        size = (region.layer_stop - region.layer_start) * len(_bytes(self._kv[0][:1])) * tokens
        if size > move.host.length_bytes:
            raise KvMoveError(f"the region needs {size} bytes, its room has {move.host.length_bytes}")
        return self._tier.host_view(move.host.offset_bytes, size)


def check_extents(starts: Sequence[int], lengths: Sequence[int], slots: int) -> None:
    """:raises KvMoveError: an extent is empty or lies outside the slab."""
    for start, length in zip(starts, lengths, strict=True):
        if start < 0 or length <= 0 or start + length > slots:
            raise KvMoveError(f"extent of {length} slots from {start} lies outside the slab of {slots}")


def _bytes(view: Tensor) -> Bytes:
    return view.view(torch.uint8).numpy().reshape(-1)


def _to_host(slab: Bytes, host: Bytes, hasher: Any) -> None:
    np.copyto(host, slab)
    hasher.update(slab.data)


def _from_host(slab: Bytes, host: Bytes, hasher: Any) -> None:
    """Into the slab first: what is hashed is what will be used, whatever happens in shared memory meanwhile."""
    np.copyto(slab, host)
    hasher.update(slab.data)
