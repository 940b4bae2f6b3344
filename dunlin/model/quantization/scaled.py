"""Weights of 8 bits, a number each, and their scales: by tensor, by row, by group of inputs, or by block."""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.model.quantization.scheme import SCALE_DTYPES, ModuleTensor, groups_of, in_groups

FP8, INT8 = "F8_E4M3", "I8"
POWERS_OF_TWO = "F8_E8M0"


@dataclass(frozen=True, slots=True)
class ScaledScheme:
    """`dtype` of the weights, as safetensors names it. A scale is for `block_rows` rows and `group` inputs (0: all);
    `scale` names the tensor that holds it.
    """

    dtype: str
    block_rows: int
    group: int
    scale: str = "weight_scale"
    scale_alias: str = ""

    def tensors(self, rows: int, inputs: int) -> Sequence[ModuleTensor]:
        shapes = self._shapes(rows, inputs)
        dtypes = (*SCALE_DTYPES, POWERS_OF_TWO) if self.dtype == FP8 else SCALE_DTYPES
        found = [
            ModuleTensor("weight", ((rows, inputs),), (self.dtype,)),
            ModuleTensor(self.scale, shapes, dtypes, alias=self.scale_alias),
        ]
        if self.dtype == INT8:
            found.append(ModuleTensor("weight_zero_point", shapes, (INT8,), optional=True))
        return found

    def _shapes(self, rows: int, inputs: int) -> tuple[tuple[int, ...], ...]:
        grid = groups_of(rows, self.block_rows), groups_of(inputs, self.group)
        if not self.block_rows:
            return (), (1,), (1, 1)
        return (grid, (rows,)) if self.block_rows == 1 and not self.group else (grid,)

    def misfit(self, rows: int, inputs: int) -> str:
        return ""

    def __str__(self) -> str:
        kind = "fp8" if self.dtype == FP8 else "8-bit integers"
        if not self.block_rows:
            return f"{kind}, one scale for a tensor"
        if self.block_rows == 1:
            return f"{kind} {in_groups(self.group)}"
        return f"{kind} in blocks of {self.block_rows} × {self.group}"
