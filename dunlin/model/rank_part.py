"""One tensor-parallel rank's part of a model: its heads, its inner columns, and which parts of the weights those are.

Knows no tensor and no process, so a mistake is found before anything is started.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dunlin.model.config import ModelConfig
from dunlin.model.weight_layout import WeightBlock, WeightPart

MOST_RANKS = 8
BY_ROWS = ("qkv", "qkv_bias", "gate_up", "gate_up_bias")
"""Blocks of which a rank has some rows: their products need all inputs."""
BY_COLUMNS = ("out", "down")
"""Blocks of which a rank has some columns: their products are parts of a sum."""


class RankError(ValueError):
    """A model that cannot be computed by so many ranks; the text says why."""


@dataclass(frozen=True, slots=True)
class RankPart:
    """Rank number `rank` of `ranks` of the model `whole`. Made by `rank_part`."""

    whole: ModelConfig
    rank: int = 0
    ranks: int = 1

    @property
    def config(self) -> ModelConfig:
        """The model as this rank computes it; hidden states and vocabulary are whole."""
        whole, ranks = self.whole, self.ranks
        if ranks == 1:
            return whole
        heads, kv_heads, inner = whole.heads // ranks, whole.kv_heads // ranks, whole.intermediate // ranks
        return replace(whole, heads=heads, kv_heads=kv_heads, intermediate=inner)

    def is_cut(self, block: WeightBlock) -> bool:
        """Whether this rank has a part only of the block."""
        return self.ranks > 1 and block.name in (*BY_ROWS, *BY_COLUMNS)

    def whole_block(self, block: WeightBlock) -> WeightBlock:
        """The whole of a block of `config`."""
        rows, *columns = block.shape
        if block.name in BY_COLUMNS:
            return replace(block, shape=(rows, *(count * self.ranks for count in columns)))
        parts = tuple(WeightPart(part.name, part.rows * self.ranks) for part in block.parts)
        return replace(block, shape=(rows * self.ranks, *columns), parts=parts)

    def rows(self, block: WeightBlock) -> list[range]:
        """The rows of the whole block that this rank has, in order."""
        if block.name in BY_COLUMNS:
            return [range(block.shape[0])]
        found, start = [], 0
        for size in self._stacked(block.name):
            own = size // self.ranks
            found.append(range(start + self.rank * own, start + (self.rank + 1) * own))
            start += size
        return found

    def columns(self, block: WeightBlock) -> slice:
        """The columns of the whole block that this rank has."""
        if block.name not in BY_COLUMNS:
            return slice(None)
        return slice(self.rank * block.shape[1], (self.rank + 1) * block.shape[1])

    def _stacked(self, block: str) -> Sequence[int]:
        """The rows of the tensors that the whole block stacks, fused in the checkpoint or not."""
        whole = self.whole
        if block.startswith("qkv"):
            return whole.heads * whole.head_dim, whole.kv_heads * whole.head_dim, whole.kv_heads * whole.head_dim
        return whole.intermediate, whole.intermediate


def rank_part(whole: ModelConfig, rank: int, ranks: int) -> RankPart:
    """:raises RankError: the model does not divide into so many parts."""
    check_ranks(whole, ranks)
    return RankPart(whole, rank, ranks)


def check_ranks(whole: ModelConfig, ranks: int) -> None:
    """:raises RankError: the model does not divide into so many parts."""
    if ranks == 1:
        return
    if whole.experts is not None:
        raise RankError(f"a model with experts is computed by one rank, not by {ranks}")
    sizes = {"attention heads": whole.heads, "key-value heads": whole.kv_heads, "MLP columns": whole.intermediate}
    for name, size in sizes.items():
        if size % ranks:
            raise RankError(f"{size} {name} do not divide into {ranks} ranks")
