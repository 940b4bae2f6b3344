"""What the ranks of one engine exchange while they compute: sums of their parts, and all parts together."""

from typing import Protocol

from torch import Tensor


class Collective(Protocol):
    """Calls that every rank makes in the same order, with tensors of the same shape and dtype.

    The results have the same bits at every rank. On the host all raise RankGone where another rank has ended.
    """

    rank: int
    ranks: int

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, on the host added in the order of the ranks; it may be `part` itself."""
        ...

    def all_gather(self, part: Tensor) -> Tensor:
        """All ranks' parts in their order: `[ranks, *part.shape]`."""
        ...


class OneRank:
    """An engine of one rank: its part is all there is."""

    rank = 0
    ranks = 1

    def all_reduce(self, part: Tensor) -> Tensor:
        return part

    def all_gather(self, part: Tensor) -> Tensor:
        return part[None]


ONE_RANK = OneRank()
