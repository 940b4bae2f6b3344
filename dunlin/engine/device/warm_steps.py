"""The steps that a device computes once before the first request, so that no request waits for kernels to be made."""

from dataclasses import dataclass

from dunlin.engine.decoder.numerics import EXACT_ROWS, TILE_ROWS

WARM_TOKENS = 512
"""Tokens of the largest step that an instance composes by default."""
MANY_KEYS = 800
"""So many keys of a decode row are read by several programs of a GPU; those of a prompt that are alike are copied in
blocks.
"""


@dataclass(frozen=True, slots=True)
class WarmRow:
    """A row's tokens, the last of so many; `is_cut`: their attention is computed in two parts that merge."""

    tokens: int
    keys: int
    is_cut: bool = False


WarmStep = tuple[WarmRow, ...]


def host_warm_steps(rows: int = EXACT_ROWS, tokens: int = WARM_TOKENS) -> tuple[WarmStep, ...]:
    """Each number of decode rows up to `rows`; one prompt of each size beyond, up to `tokens`, that products are padded
    to.
    """
    decode = ((WarmRow(1, 1),) * count for count in range(1, rows + 1))
    return (*decode, *((WarmRow(count, count),) for count in range(rows + TILE_ROWS, tokens + 1, TILE_ROWS)))


GPU_WARM_STEPS: tuple[WarmStep, ...] = (
    (WarmRow(1, 1),),
    (WarmRow(1, 1), WarmRow(1, MANY_KEYS)),
    (WarmRow(1, 1), WarmRow(1, MANY_KEYS), WarmRow(40, 40)),
    (WarmRow(40, MANY_KEYS),),
    (WarmRow(40, MANY_KEYS, is_cut=True),),
)
"""Decode rows whose keys one program reads, or several; a prompt beside them; and tokens after many, at once and in
parts.
"""
