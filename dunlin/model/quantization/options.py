"""Reading the keys that several quantisation methods share; what is wrong with one names its key."""

from collections.abc import Set as AbstractSet

from dunlin.model.config_reader import ConfigReader

UNQUANTISED = "use the unquantised checkpoint"


def refuse_options(reader: ConfigReader, key: str, value: object, known: AbstractSet[object]) -> None:
    """Add a fault if `value` is none of those known, as JSON has them: 4.0 and true are not 4 and 1."""
    is_known = any(type(value) is type(each) and value == each for each in known)
    if not is_known:
        of = reader.values.get("quant_method")
        names = ", ".join(sorted(map(_text, known)))
        reader.fault(
            f"`{key}` {value!r} of quantised weights is not supported (`quantization_config`: {of})",
            f"dunlin reads {names}; {UNQUANTISED}",
        )


def read_group_size(reader: ConfigReader, key: str, default: int = 128) -> int:
    """Inputs that share a scale; 0 for all, which the files write as -1."""
    value = reader.values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not (value == -1 or value > 0):
        reader.fault(f"`{key}` of quantised weights must be a positive integer or -1, not {value!r}")
        return 0
    return max(value, 0)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
