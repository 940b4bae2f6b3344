"""Numbers of KV that are narrower than those of the weights, by the names of options and messages. Loads no torch."""

FP8 = "float8_e4m3fn"
"""Torch's name of what vLLM calls `fp8`, or `fp8_e4m3`."""
NARROW = {FP8: 1}
"""Bytes of an item."""
