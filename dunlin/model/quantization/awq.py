"""AWQ as AutoAWQ writes it: 4 bits, asymmetric, in the layout of its GEMM kernel."""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.model.config_reader import ConfigReader
from dunlin.model.quantization.options import read_group_size, refuse_options
from dunlin.model.quantization.scheme import (
    SCALE_DTYPES,
    AllModules,
    ModuleTensor,
    Quantization,
    groups_of,
    in_groups,
)

BITS, PACKED = 4, 8
"""Bits of a weight, and weights in an int32."""


@dataclass(frozen=True, slots=True)
class AwqScheme:
    """`group` inputs share a scale and a zero-point; 0: all do."""

    group: int

    def tensors(self, rows: int, inputs: int) -> Sequence[ModuleTensor]:
        groups = groups_of(inputs, self.group)
        return (
            ModuleTensor("qweight", ((inputs, rows // PACKED),), ("I32",)),
            ModuleTensor("qzeros", ((groups, rows // PACKED),), ("I32",)),
            ModuleTensor("scales", ((groups, rows),), SCALE_DTYPES),
        )

    def misfit(self, rows: int, inputs: int) -> str:
        if rows % PACKED:
            return f"{rows} rows are no multiple of {PACKED}"
        return f"{inputs} inputs are no multiple of the group's {self.group}" if inputs % (self.group or 1) else ""

    def __str__(self) -> str:
        return f"{BITS}-bit integers {in_groups(self.group)}"


def read_awq(reader: ConfigReader) -> Quantization:
    """The `quantization_config` of `quant_method` awq; faults go to the reader."""
    values = reader.values
    refuse_options(reader, "bits", values.get("bits", values.get("w_bit", BITS)), {BITS})
    layout = values.get("version", values.get("checkpoint_format", values.get("format", "gemm")))
    refuse_options(reader, "version", layout.lower() if isinstance(layout, str) else layout, {"gemm"})
    refuse_options(reader, "zero_point", values.get("zero_point", True), {True})
    refuse_options(reader, "backend", values.get("backend", "autoawq"), {"autoawq", "auto", "gptqmodel"})
    key = "group_size" if "group_size" in values else "q_group_size"
    return Quantization("awq", ((AllModules(), AwqScheme(read_group_size(reader, key))),))
