"""A layer's attention as one piece: what the iteration machine asks of a backend, by one that cannot be divided."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dunlin.engine.attention.base import Attention, BatchRow


@dataclass(frozen=True, slots=True)
class RowState:
    """A row that left a layer's attention. `progress` counts the pieces done."""

    query: Tensor
    out: Tensor
    lse: Tensor
    progress: Mapping[range, int]
    parts: Mapping[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)


class AttentionPass:
    """One layer's attention of a batch."""

    def __init__(self, plan: "WholePlan", query: Tensor, layer_kv: Tensor, resumed: Mapping[int, RowState]) -> None:
        self._plan = plan
        self._query = query
        self._layer_kv = layer_kv
        self._resumed = resumed
        self._result: tuple[Tensor, Tensor] | None = None

    def advance(self) -> bool:
        """Compute the piece; whether another one is ready."""
        if self._result is None:
            self._result = out, lse = self._plan.attend(self._query, self._layer_kv, lambda: None)
            for at, state in self._resumed.items():
                if state.progress:
                    row = self._plan.rows[at]
                    out[row.start : row.stop], lse[row.start : row.stop] = state.out, state.lse
        return False

    def leave(self, row: int) -> RowState:
        """Take a row out."""
        span = slice(self._plan.rows[row].start, self._plan.rows[row].stop)
        out, lse = self._result or (self._query[:0], self._query[:0])
        done = {range(1): 1} if self._result is not None else {}
        return RowState(self._query[span].clone(), out[span].clone(), lse[span].clone(), done)

    def result(self) -> tuple[Tensor, Tensor]:
        """(out, lse), packed like the queries."""
        assert self._result is not None
        return self._result


class WholePlan:
    """A batch, planned once for all its layers."""

    def __init__(self, attention: Attention, rows: Sequence[BatchRow]) -> None:
        self.rows = rows
        self.attend = attention(rows)

    def start(self, query: Tensor, layer_kv: Tensor, resumed: Mapping[int, RowState]) -> AttentionPass:
        """Begin one layer."""
        return AttentionPass(self, query, layer_kv, resumed)
