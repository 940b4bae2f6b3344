"""What is kept of a row that leaves an iteration, and how often its work was computed."""

from dataclasses import dataclass

from torch import Tensor

from dunlin.engine.attention.base import RowState
from dunlin.engine.decoder.linear_work import LinearWork
from dunlin.engine.decoder.piece_sizes import Linear


@dataclass(frozen=True, slots=True)
class RowProgress:
    """A row that left an iteration: enough to go on with it in another.

    It has finished the layers before `layer`, and in that layer the queries, keys and values of its first `projected`
    tokens, `block` pieces of its attention, and the rest of the layer for its first `finished` tokens. `begun` is what
    was computed of the tokens after those, before attention or after it: its tokens count from the row's first.
    """

    layer: int
    block: int
    projected: int
    finished: int
    hidden: Tensor
    """`[tokens, hidden]`: before the layer; of the first `finished` tokens after it."""
    query: Tensor | None = None
    """`[projected, heads, head_dim]`, until attention has begun."""
    attention: RowState | None = None
    begun: LinearWork | None = None

    @property
    def begun_stretch(self) -> Linear:
        """The stretch that `begun` is of."""
        return Linear.PROJECT if self.attention is None else Linear.FINISH

    @property
    def size_bytes(self) -> int:
        """Of the tensors."""
        state = self.attention
        tensors = [self.hidden] if self.query is None else [self.hidden, self.query]
        if state is not None:
            tensors += [state.query, state.out, state.lse, *(each for part in state.parts.values() for each in part)]
        return sum(tensor.nbytes for tensor in tensors) + (self.begun.size_bytes if self.begun is not None else 0)


@dataclass(slots=True)
class WorkCount:
    """How often a layer's two linear stretches were computed for a token: tokens times layers."""

    projected: int = 0
    finished: int = 0
