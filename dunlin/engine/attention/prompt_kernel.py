"""Another library's attention of prompts, in the place of the wide tiles of `triton_tiles.launch`.

It computes whole rows alone: consecutive queries that end where their keys end, as those of a sequence that is here.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from dunlin.engine.attention.base import AttentionKind


class PlannedPrompts(Protocol):
    """Some rows, planned once for all layers of one kind."""

    def attend(self, query: Tensor, layer_kv: Tensor, out: Tensor, lse: Tensor) -> None:
        """Attention of the rows into their places in `out` and `lse`; arguments as of `PagedKernel.attend`."""
        ...


class PromptKernel(Protocol):
    """What attends to prompts."""

    def plan(self, kind: AttentionKind, rows: Tensor, slots: Sequence[Tensor]) -> PlannedPrompts:
        """`rows` `[rows, COLUMNS]`: those of a `CellTable`, each of them whole. `slots`: of each row's keys, int32, on
        the device.
        """
        ...


def plan_prompts(
    kernel: PromptKernel | None, kind: AttentionKind, table: Tensor, tiles: Tensor, slot_at: Tensor, slots: Tensor
) -> PlannedPrompts | None:
    """The rows of the `tiles` `[tiles, 2]` of `table`, planned; None: there is no kernel or no row, or one that is not
    whole.

    `table`, `tiles` and `slot_at` are on the host, `slots` on the device: key k of row r has `slots[slot_at[r] + k]`.
    """
    if kernel is None:
        return None
    at = tiles[tiles[:, 1] == 0, 0]  # each row's first tile
    rows = table[at]
    if not len(at) or not _are_whole(rows):
        return None
    spans = zip((slot_at[at] + rows[:, 7]).tolist(), (slot_at[at] + rows[:, 8]).tolist(), strict=True)
    return kernel.plan(kind, rows, [slots[begin:end] for begin, end in spans])


def _are_whole(rows: Tensor) -> bool:
    _, _, tokens, query_at, query_step, key_at, key_step, begin, end, _, _ = rows.unbind(1)
    is_consecutive = (query_step == 1) & (key_step == 1)
    ends_with_keys = key_at + end == query_at + tokens
    sees_a_key = key_at + begin <= query_at
    return bool((is_consecutive & ends_with_keys & sees_a_key).all())
