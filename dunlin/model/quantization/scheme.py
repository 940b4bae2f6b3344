"""What every format of quantised weights says of itself: its tensors, by name, shape and dtype.

A module is one linear product: `model.layers.0.mlp.down_proj`. Loads no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

SCALE_DTYPES = ("F32", "F16", "BF16")
INT_BITS = 32
"""Of the integers that small weights are packed into."""


@dataclass(frozen=True, slots=True)
class ModuleTensor:
    """One tensor of a quantised module, `MODULE.suffix`, or `MODULE.alias`; any of `shapes` and `dtypes` will do."""

    suffix: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    optional: bool = False
    alias: str = ""


class WeightScheme(Protocol):
    """How the weights `[rows, inputs]` of a module are stored."""

    def tensors(self, rows: int, inputs: int) -> Sequence[ModuleTensor]:
        """The tensors that stand for the weights."""
        ...

    def misfit(self, rows: int, inputs: int) -> str:
        """Why no module of this size is stored so; "" if it may be."""
        ...

    def __str__(self) -> str:
        """In words, for `dunlin model show`."""
        ...


@dataclass(frozen=True, slots=True)
class Quantization:
    """The `quantization_config` of a checkpoint. `schemes` are asked in order; `method` is its `quant_method`."""

    method: str
    schemes: tuple[tuple["ModuleTargets", WeightScheme], ...]

    def scheme_of(self, module: str) -> WeightScheme | None:
        """How the weights of `module` are stored if they are quantised; None: they are not to be."""
        return next((scheme for targets, scheme in self.schemes if targets.match(module)), None)

    def __str__(self) -> str:
        kinds = dict.fromkeys(str(scheme) for _, scheme in self.schemes)
        return f"{self.method}: {'; '.join(kinds)}"


class ModuleTargets(Protocol):
    """Which modules a scheme is for."""

    def match(self, module: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class AllModules:
    """Every linear product."""

    def match(self, module: str) -> bool:
        return True


def groups_of(size: int, group: int) -> int:
    """How many groups of `group` are needed for `size`; a `group` of 0 takes all."""
    return -(-size // group) if group else 1


def in_groups(group: int) -> str:
    """In words: what shares a scale along the inputs."""
    return f"in groups of {group}" if group else "by row"
