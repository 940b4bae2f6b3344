"""The sizes of steps that are recorded, to which others are padded. Needs no Triton."""

from collections.abc import Sequence

DECODE_SPLITS: tuple[int, ...] = (1, 4, 16, 64)
DECODE_ROWS: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Sizes of steps of one token a row."""
MIXED_TOKENS: tuple[int, ...] = (32, *range(64, 512, 64), *range(512, 2049, 128))
"""Sizes of other steps, up to what an instance composes: a token of padding costs as much as another one."""


def at_least(sizes: Sequence[int], count: int) -> int | None:
    """The first of the ascending `sizes` that holds `count`; None: none does."""
    return next((size for size in sizes if size >= count), None)
