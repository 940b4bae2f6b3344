"""AutoRound: the layout of GPTQ, or that of AWQ, as `packing_format` says."""

from dunlin.model.config_reader import ConfigReader
from dunlin.model.quantization.awq import AwqScheme
from dunlin.model.quantization.gptq import GptqScheme
from dunlin.model.quantization.options import UNQUANTISED, read_group_size, refuse_options
from dunlin.model.quantization.scheme import AllModules, Quantization, WeightScheme

GPTQ_FORMATS = frozenset({"auto_round:auto_gptq", "auto_round:gptq"})
AWQ_FORMATS = frozenset({"auto_round:auto_awq", "auto_round:awq"})
PLAIN_BITS = 16


def read_autoround(reader: ConfigReader) -> Quantization:
    """The `quantization_config` of `quant_method` auto-round; faults go to the reader."""
    values, known = reader.values, len(reader.faults)
    form = values.get("packing_format")
    refuse_options(reader, "packing_format", form, GPTQ_FORMATS | AWQ_FORMATS)
    is_awq = isinstance(form, str) and form in AWQ_FORMATS
    refuse_options(reader, "bits", values.get("bits", 4), {4} if is_awq else {2, 4, 8})
    refuse_options(reader, "data_type", values.get("data_type", "int"), {"int"})
    _refuse_other_modules(reader)
    group = read_group_size(reader, "group_size")
    bits = values.get("bits", 4) if len(reader.faults) == known else 4
    scheme: WeightScheme = AwqScheme(group) if is_awq else GptqScheme(bits, group, ordered=False, zero_offset=1)
    return Quantization("auto-round", ((AllModules(), scheme),))


def _refuse_other_modules(reader: ConfigReader) -> None:
    """`extra_config` may leave modules as they are, which their tensors show, or give them bits of their own; a
    rotation would be undone by kernels.
    """
    extra = reader.values.get("extra_config") or {}
    if not isinstance(extra, dict) or not all(map(_is_plain, extra.values())):
        reader.fault("`extra_config` of quantised weights gives modules bits of their own", UNQUANTISED)
    for key in reader.values:
        if "rotation" in key and reader.values[key]:
            reader.fault(f"`{key}` of quantised weights is not supported", UNQUANTISED)


def _is_plain(own: object) -> bool:
    bits = own.get("bits") if isinstance(own, dict) else None
    return isinstance(bits, int) and bits >= PLAIN_BITS
