"""What goes between the rows of an iteration and other engines."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from dunlin.engine.attention.base import AttentionPass, BatchRow


class LayerExchange(Protocol):
    """What goes between a batch's rows and other engines in each layer, beside its attention."""

    @property
    def done(self) -> bool:
        """Whether nothing of the layer is awaited, to be computed for others, or to be sent."""
        ...

    @property
    def is_computing(self) -> bool:
        """Whether it has pieces to compute for others."""
        ...

    def begin(
        self, layer: int, query: Tensor | None, attention: AttentionPass | None, at: Mapping[int, BatchRow]
    ) -> None:
        """All queries, keys and values of the layer are there; `at`: the rows by number, in the order of the pass."""
        ...

    def advance(self) -> bool:
        """Do what can be done now, at most one piece; returns whether there was anything."""
        ...

    def leave(self, number: int) -> None:
        """Row `number` has left."""
        ...
