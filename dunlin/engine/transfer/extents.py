"""Runs of slots as (starts, lengths) columns, and the kind of KV that slots hold. Imports neither torch nor numpy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dunlin.engine.transfer.errors import TransferError


@dataclass(frozen=True, slots=True)
class KvKind:
    """What one slot of one layer holds: its number type and its size."""

    dtype: str
    slot_bytes: int


def check_extents(starts: Sequence[int], lengths: Sequence[int], slots: int) -> None:
    """:raises TransferError: an extent is empty or lies outside the slab."""
    if len(starts) != len(lengths):
        raise TransferError(f"{len(starts)} extents begin and {len(lengths)} have a length")
    for start, length in zip(starts, lengths, strict=True):
        if start < 0 or length <= 0 or start + length > slots:
            raise TransferError(f"extent of {length} slots from {start} lies outside the slab of {slots}")


def part_of(starts: Sequence[int], lengths: Sequence[int], first: int, stop: int) -> tuple[list[int], list[int]]:
    """The extents of slots `[first, stop)`, counted from the first extent's first slot."""
    found = list(_overlaps(starts, lengths, first, stop))
    return [start for start, _ in found], [length for _, length in found]


def _overlaps(starts: Sequence[int], lengths: Sequence[int], first: int, stop: int) -> Iterator[tuple[int, int]]:
    at = 0
    for start, length in zip(starts, lengths, strict=True):
        begin, end = max(first, at), min(stop, at + length)
        if begin < end:
            yield start + begin - at, end - begin
        at += length
