"""What an engine computes with, by its options: refused where its device cannot, and told in the log."""

import sys
from collections.abc import Callable
from functools import cache

from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.numerics import Numerics, choose_deterministic_numerics, for_bf16, for_narrow_kv
from dunlin.engine.device.base import EngineDevice
from dunlin.engine.process.background import counted
from dunlin.engine.process.options import EngineOptions


def engine_numerics(options: EngineOptions, device: EngineDevice) -> Numerics:
    """:raises ValueError: determinism or narrow KV is refused, or a package for the device is missing."""
    if options.deterministic and not device.is_host:
        raise ValueError(f"deterministic mode computes on the CPU, not on {device.name}: drop one of the two")
    if options.deterministic and options.dtype != "float32":
        raise ValueError(f"deterministic mode computes in float32, not {options.dtype}: drop one of the two")
    if options.deterministic and options.narrow_kv:
        raise ValueError(f"deterministic mode keeps KV in float32, not {options.kv_dtype}: drop one of the two")
    if options.narrow_kv and not device.reads_fp8:
        raise ValueError(f"{device.name} reads no KV in {options.narrow_kv}: take --kv-dtype auto")
    if options.deterministic:
        return _deterministic(options.name)
    return _fast(options.name, device, options.dtype, options.narrow_kv)


COMPILE_S = 900.0
"""A library that compiles its kernels when it is first tried may take so long; then they are kept on the disk."""


def with_chosen_prompts(engine: str, device: EngineDevice, decoder: Decoder, count: Callable[[], None]) -> Decoder:
    """The decoder of a model that is loaded, with what attends to prompts fastest where its device has a choice.
    `count` is called meanwhile, by another thread. Ranks, which measure each for itself and have to cut a step alike,
    have no choice.
    """
    if device.choose_prompts is None or decoder.collective.ranks > 1:
        return decoder
    with counted(count, COMPILE_S):
        numerics, description = device.choose_prompts(decoder)
    print(f"dunlin engine {engine}: {description}", file=sys.stderr, flush=True)
    return decoder.with_numerics(numerics)


@cache
def _deterministic(engine: str) -> Numerics:
    """Says what computes, once: a standby loads twice."""
    chosen, description = choose_deterministic_numerics()
    print(f"dunlin engine {engine}: {description}", file=sys.stderr, flush=True)
    return chosen


@cache
def _fast(engine: str, device: EngineDevice, dtype: str, narrow_kv: str) -> Numerics:
    """Says what computes, once: a standby loads twice."""
    chosen, description = device.choose_numerics()
    print(f"dunlin engine {engine}: {description}", file=sys.stderr, flush=True)
    if not narrow_kv:
        return for_bf16(chosen) if dtype == "bfloat16" else chosen
    print(f"dunlin engine {engine}: KV in {narrow_kv}", file=sys.stderr, flush=True)
    return for_narrow_kv(chosen)
