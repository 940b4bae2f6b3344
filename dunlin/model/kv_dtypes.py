"""Numbers of KV that are narrower than those of the weights, by the names of options and messages. Loads no torch."""

FP8 = "float8_e4m3fn"
"""Torch's name of what vLLM calls `fp8`, or `fp8_e4m3`."""
NARROW = {FP8: 1}
"""Bytes of an item."""
KV_DTYPES = {"auto": "", "fp8": FP8}
"""By the name that users say; `auto` is no other than the weights' own."""


def precision_of(dtype: str, kv_dtype: str) -> str:
    """What the time of a step depends on, in a profile's words: users' names of the weights' and of KV's numbers."""
    return dtype if not KV_DTYPES[kv_dtype] else f"{dtype} with KV in {kv_dtype}"
