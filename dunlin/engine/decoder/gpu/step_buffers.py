"""What recorded segments read and write: buffers for steps of up to so many tokens, and which recorded size a step has.

A step is padded to one of a few sizes. Padding tokens have no slot, so nothing of theirs is kept; padding tiles of
decode rows are of a row without tokens.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dunlin.engine.attention.base import AttentionKind, LocalRows
from dunlin.engine.attention.native.library import COLUMNS
from dunlin.engine.attention.paged import DecodeRuns
from dunlin.engine.attention.tile_sizes import SIZES, split_counts
from dunlin.engine.attention.triton_paged import LEAST_QUERIES, PIECE_PAIRS
from dunlin.engine.attention.triton_tiles import expand, find_tiles
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.gpu.recorded_sizes import DECODE_ROWS, DECODE_SPLITS, MIXED_TOKENS, at_least
from dunlin.engine.decoder.host_copies import to_device, write

MOST_ROWS = DECODE_ROWS[-1]
MOST_SLOTS = 1 << 22
"""Keys of all rows together."""
NO_SLOT = -1
_NO_ROW = (0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class DecodeSize:
    """A padded step of decode rows: their number, and the splits of a row's keys."""

    rows: int
    splits: int


@dataclass(frozen=True, slots=True)
class StepTables:
    """What the host writes of a step: for each kind of attention a table of rows, and their tiles; where each row's
    keys begin among the slots of all (`slot_at`); `splits` of the keys of narrow ones at most. `decode` or, of a step
    that has other rows, padded `tokens`: its size among those that are recorded, if it is one.
    """

    whole: Tensor
    slot_at: Tensor
    by_kind: dict[AttentionKind, Tensor]
    narrow: Tensor
    wide: Tensor
    splits: int
    decode: DecodeSize | None
    tokens: int | None


class StepScratch:
    """Owns what steps of all sizes use, one after the other: slots of keys, queries, and what attention gives."""

    def __init__(self, decoder: Decoder) -> None:
        config, device, tokens = decoder.config, decoder.device, MIXED_TOKENS[-1]
        self.slots = torch.empty(MOST_SLOTS, dtype=torch.int32, device=device)
        self.query = torch.zeros(tokens, config.heads, config.head_dim, dtype=decoder.dtype, device=device)
        self.mixed = torch.zeros_like(self.query)
        self.lse = torch.zeros(tokens, config.heads, dtype=torch.float32, device=device)


class StepBuffers:
    """Owns the buffers of steps of up to `tokens` tokens: `hidden` states, which segments read and write, each token's
    `turn` and place, and what the host writes of a step in one copy: where each row's slots begin, tables of its rows
    (`whole`: all their keys; `tables`: those that a kind of attention sees), and their tiles, of `wide_queries` where
    they are wide. `scratch` is that of all sizes.
    """

    def __init__(
        self,
        tokens: int,
        kinds: Sequence[AttentionKind],
        wide_queries: int,
        hidden: Tensor,
        turn: Tensor,
        scratch: StepScratch,
    ) -> None:
        self.tokens = tokens
        self.hidden = hidden.new_empty(tokens, *hidden.shape[1:])
        self.turn = turn.new_empty(tokens, *turn.shape[1:])
        self.places = torch.empty(tokens, dtype=torch.int64, device=hidden.device)
        self.scratch = scratch
        self._kinds = kinds
        self._rows = min(tokens, MOST_ROWS) + 1  # the last one has no tokens
        self._wide = -(-tokens // wide_queries) + self._rows
        parts = [self._rows, *[COLUMNS * self._rows] * (1 + len(kinds)), 2 * self._rows, 2 * self._wide]
        self._given = torch.empty(sum(parts), dtype=torch.int64, device=hidden.device)
        found = torch.split(self._given, parts)
        self._none = torch.tensor([[self._rows - 1, 0]])
        self.slot_at = found[0]
        self.whole = found[1].view(-1, COLUMNS)
        self.tables = {kind: part.view(-1, COLUMNS) for kind, part in zip(kinds, found[2:-2], strict=True)}
        self.narrow, self.wide = found[-2].view(-1, 2), found[-1].view(-1, 2)

    def fill(
        self, batch: DecoderBatch, hidden: Tensor, turn: Tensor, tables: StepTables, runs: Sequence[Tensor]
    ) -> None:
        """Write a step into the buffers. `runs`: of its rows' slots, on the device."""
        count = len(batch.slots)
        for into, given in ((self.hidden, hidden), (self.turn, turn), (self.places, batch.slots)):
            into[:count] = given
        self.places[count:] = NO_SLOT
        lengths = tables.whole[:, 8]
        self._write(tables.slot_at, (tables.whole, *tables.by_kind.values()), tables.narrow, tables.wide)
        # From each row's first key, so that layers of all kinds find slots at the same places.
        expand(self.whole[: len(lengths)], runs[0], runs[1], self.slot_at, self.scratch.slots, int(lengths.max()))

    def clear(self) -> None:
        """Write a step without tokens: what is computed of it goes nowhere."""
        self.places.fill_(NO_SLOT)
        no_rows, no_tiles = torch.empty(0, COLUMNS, dtype=torch.int64), torch.empty(0, 2, dtype=torch.int64)
        self._write(no_rows[:, 0], [no_rows] * (1 + len(self._kinds)), no_tiles, no_tiles)

    def _write(self, slot_at: Tensor, tables: Sequence[Tensor], narrow: Tensor, wide: Tensor) -> None:
        parts = [
            _padded(slot_at[:, None], self._rows, torch.zeros(1, 1, dtype=torch.int64)),
            *(_padded(each, self._rows, torch.tensor([_NO_ROW])) for each in tables),
            _padded(narrow, self._rows, self._none),
            _padded(wide, self._wide, self._none),
        ]
        write(self._given, torch.cat([part.reshape(-1) for part in parts]))


class StepTabler:
    """Makes the tables of one decoder's steps; remembers the runs of slots of the last one's rows."""

    def __init__(self, decoder: Decoder) -> None:
        self.kinds = sorted({decoder.attention_kind(layer) for layer in range(decoder.config.layers)}, key=repr)
        self._runs: DecodeRuns | None = None
        self._there: tuple[Tensor, Tensor] | None = None
        config = decoder.config
        group = config.heads // config.kv_heads
        narrow, wide = SIZES.shapes(config.heads, config.kv_heads, config.head_dim, decoder.dtype)
        self._narrow_queries, self.wide_queries = narrow.lines // group, wide.lines // group

    def runs(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The runs of the rows of the last tables."""
        assert self._runs is not None
        if self._there is None:
            self._there = to_device(self._runs.run_at, device), to_device(self._runs.run_slot, device)
        return self._there

    def tables(self, rows: LocalRows) -> StepTables:
        """The tables of a step's rows. Their `size` is None where it is none of those that are recorded."""
        chosen = range(len(rows))
        if self._runs is None or not self._runs.fit(rows, chosen):
            self._runs, self._there = DecodeRuns(rows, chosen), None
        whole = self._runs.table(rows, chosen, 0)
        whole[:, 2] = torch.tensor(rows.stops) - whole[:, 0]
        whole[:, 3] = whole[:, 8] - whole[:, 2]
        by_kind = {kind: _windowed(whole, kind.window) for kind in self.kinds}
        narrow, wide = find_tiles(whole, self._narrow_queries, self.wide_queries)
        splits = _splits(narrow[:, 0], by_kind.values())
        decode, lengths = _decode_size(whole, splits), whole[:, 8]
        return StepTables(
            whole,
            lengths.cumsum(0) - lengths,
            by_kind,
            narrow,
            wide,
            splits,
            decode,
            _mixed_tokens(whole) if decode is None else None,
        )


def usual_decode_sizes() -> list[DecodeSize]:
    """Those that are met soon, of up to 8,192 keys a row: a size that is met later makes its step wait while it is
    recorded.
    """
    return [DecodeSize(rows, most) for rows in DECODE_ROWS for most in DECODE_SPLITS[:3]]


def _splits(few: Tensor, tables: Collection[Tensor]) -> int:
    """Of the keys of the rows `few`, at most."""
    if not len(few):
        return 0
    return max((int(split_counts(each[few, 8] - each[few, 7]).max()) for each in tables), default=0)


def _decode_size(whole: Tensor, splits: int) -> DecodeSize | None:
    if int(whole[:, 2].max()) > 1:
        return None
    rows, most = at_least(DECODE_ROWS, len(whole)), at_least(DECODE_SPLITS, splits)
    return None if rows is None or most is None else DecodeSize(rows, most)


def _mixed_tokens(whole: Tensor) -> int | None:
    """None: of too many tokens, or one layer's attention would take too long to be one piece."""
    pairs = int((whole[:, 2].clamp_min(LEAST_QUERIES) * whole[:, 8]).sum())
    if len(whole) > MOST_ROWS or pairs > PIECE_PAIRS:
        return None
    return at_least(MIXED_TOKENS, int(whole[:, 2].sum()))


def _windowed(whole: Tensor, window: int) -> Tensor:
    if not window:
        return whole
    table = whole.clone()
    table[:, 7] = (table[:, 3] - window + 1).clamp_min(0)
    return table


def _padded(rows: Tensor, count: int, padding: Tensor) -> Tensor:
    """As many rows as `count`."""
    return torch.cat((rows, padding.expand(count - len(rows), -1)))
