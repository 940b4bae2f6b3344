"""GPTQ as AutoGPTQ and GPTQModel write it: packed integers, each input of a group that `g_idx` names."""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.model.config_reader import ConfigReader
from dunlin.model.quantization.options import UNQUANTISED, read_group_size, refuse_options
from dunlin.model.quantization.scheme import (
    INT_BITS,
    SCALE_DTYPES,
    AllModules,
    ModuleTensor,
    Quantization,
    groups_of,
    in_groups,
)


@dataclass(frozen=True, slots=True)
class GptqScheme:
    """`bits` of a weight; `group` inputs share a scale and a zero-point (0: all do). `ordered`: `g_idx` must say which
    group an input is in; else it may. `zero_offset` is added to a stored zero-point.
    """

    bits: int
    group: int
    ordered: bool
    zero_offset: int

    def tensors(self, rows: int, inputs: int) -> Sequence[ModuleTensor]:
        groups, packed = groups_of(inputs, self.group), INT_BITS // self.bits
        return (
            ModuleTensor("qweight", ((inputs // packed, rows),), ("I32",)),
            ModuleTensor("qzeros", ((groups, rows // packed),), ("I32",)),
            ModuleTensor("scales", ((groups, rows),), SCALE_DTYPES),
            ModuleTensor("g_idx", ((inputs,),), ("I32", "I64"), optional=not self.ordered),
        )

    def misfit(self, rows: int, inputs: int) -> str:
        packed = INT_BITS // self.bits
        fits = not (rows % packed or inputs % packed)
        return "" if fits else f"{rows} rows × {inputs} inputs are no multiples of {packed}"

    def __str__(self) -> str:
        return f"{self.bits}-bit integers {in_groups(self.group)}{', reordered' if self.ordered else ''}"


def read_gptq(reader: ConfigReader) -> Quantization:
    """The `quantization_config` of `quant_method` gptq; faults go to the reader."""
    values, known = reader.values, len(reader.faults)
    refuse_options(reader, "bits", values.get("bits", 4), {2, 4, 8})
    form = values.get("checkpoint_format", values.get("format", "gptq"))
    refuse_options(reader, "checkpoint_format", form, {"gptq", "gptq_v2"})
    refuse_options(reader, "is_marlin_format", values.get("is_marlin_format") or False, {False})
    refuse_options(reader, "pack_dtype", values.get("pack_dtype", "int32"), {"int32"})
    _refuse_other_modules(reader)
    group, ordered = read_group_size(reader, "group_size"), reader.flag("desc_act", False)
    bits = values.get("bits", 4) if len(reader.faults) == known else 4
    return Quantization("gptq", ((AllModules(), GptqScheme(bits, group, ordered, 1 if form == "gptq" else 0)),))


def _refuse_other_modules(reader: ConfigReader) -> None:
    """`dynamic` may leave modules as they were (`-:`), which their tensors show, or give them bits of their own."""
    dynamic = reader.values.get("dynamic") or {}
    if not isinstance(dynamic, dict) or any(not str(pattern).startswith("-:") for pattern in dynamic):
        reader.fault(f"`dynamic` of quantised weights gives modules bits of their own: {dynamic!r}", UNQUANTISED)
