"""Integers packed along the inputs, as compressed-tensors writes them (pack-quantized)."""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.model.quantization.scheme import INT_BITS, SCALE_DTYPES, ModuleTensor, groups_of, in_groups


@dataclass(frozen=True, slots=True)
class PackedScheme:
    """`bits` of a weight, stored with 2 to the power of `bits - 1` added; `group` inputs share a scale (0: all do).
    `asymmetric`: a zero-point, too. `ordered`: `weight_g_idx` says which group an input is in.
    """

    bits: int
    group: int
    asymmetric: bool
    ordered: bool

    def tensors(self, rows: int, inputs: int) -> Sequence[ModuleTensor]:
        groups, packed = groups_of(inputs, self.group), INT_BITS // self.bits
        found = [
            ModuleTensor("weight_packed", ((rows, groups_of(inputs, packed)),), ("I32",)),
            ModuleTensor("weight_scale", ((rows, groups),), SCALE_DTYPES),
            ModuleTensor("weight_shape", ((2,),), ("I64", "I32"), optional=True),
        ]
        if self.asymmetric:
            found.append(ModuleTensor("weight_zero_point", ((groups_of(rows, packed), groups),), ("I32",)))
        if self.ordered:
            found.append(ModuleTensor("weight_g_idx", ((inputs,),), ("I32", "I64")))
        return found

    def misfit(self, rows: int, inputs: int) -> str:
        return f"{inputs} inputs are no multiple of the group's {self.group}" if inputs % (self.group or 1) else ""

    def __str__(self) -> str:
        return f"{self.bits}-bit integers {in_groups(self.group)}{', reordered' if self.ordered else ''}"
