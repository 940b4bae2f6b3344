"""What the hosts of engines add to their kernels, by engine: measured of a baseline, dunlin's own from its path.

A device's coefficients are of kernels alone. An engine of `strategy_files` that was measured has one too.
"""

from dataclasses import dataclass
from math import log2

from dunlin.cost.models import EngineOverhead
from dunlin.cost.strategy_files import find_strategies, known_strategies


@dataclass(frozen=True, slots=True)
class NamedOverhead:
    """An engine's overhead and where it comes from."""

    overhead: EngineOverhead
    source: str

    def __str__(self) -> str:
        step_ms, prefill_ms = self.overhead.step_s * 1e3, self.overhead.prefill_s * 1e3
        return f"{step_ms:.2f} ms a step, {prefill_ms:.2f} ms more with a prompt ({self.source})"


DUNLIN = "dunlin"
VLLM = "vllm"
VLLM_MEASURED = "vllm-a800-tp8"
_ENGINES = {
    DUNLIN: NamedOverhead(
        EngineOverhead(0.00045),
        "dunlin's path between dispatcher and instance at 64 running sequences; launching kernels was not measured",
    ),
    VLLM_MEASURED: NamedOverhead(EngineOverhead(0.0165, 0.005), "vLLM as LoongServe measured it over 8 A800"),
}
_VLLM_ONE_GPU_S = 0.011
"""A step of vLLM before version 0.6 on one GPU, which no table here has: the middle of three hints (docs/cost.md).

Its authors tell of 5 to 13 ms in which the GPU waits (issue 6854 of vllm-project/vllm): 9; LoongServe's engine adds 5.4
ms more over 8 GPUs than on one, which leaves 11 of the 16.5; and a GPU that computes 38 % of the time with Llama-3-8B
(vLLM's report of version 0.6) leaves 13.5 to the host.
"""
_VLLM_GPUS = 8
_BASELINES = dict.fromkeys(("vllm", "fifo", "priority", "reservation", "llumnix", "distserve"), VLLM)
"""Presets that stand for systems built on vLLM, or (DistServe) measured on none of its own."""


def vllm_overhead(tp: int) -> NamedOverhead:
    """vLLM's overhead of 2024 over `tp` GPUs.

    What schedules, prepares and samples is there for any number; what 8 GPUs add, for they wait for the last of them in
    every layer, grows with the logarithm of their number. That form is an assumption between two points. What a prompt
    adds are kernels launched one by one in each process: the same for all.
    """
    measured = _ENGINES[VLLM_MEASURED].overhead
    if tp >= _VLLM_GPUS:
        return _ENGINES[VLLM_MEASURED]
    part = log2(max(1, tp)) / log2(_VLLM_GPUS)
    step_s = _VLLM_ONE_GPU_S + part * (measured.step_s - _VLLM_ONE_GPU_S)
    source = "pieced together for one GPU" + (f", measured on 8; {tp} lie between" if tp > 1 else ", not measured")
    return NamedOverhead(EngineOverhead(step_s, measured.prefill_s), f"vLLM in 2024: {source}")


def known_overheads() -> list[str]:
    """The names that `find_overhead` knows."""
    return sorted([*_ENGINES, VLLM, *known_strategies()])


def find_overhead(name: str, tp: int = 1) -> NamedOverhead:
    """An engine's overhead by name, over `tp` GPUs where their number counts. Raises ValueError."""
    if name.lower() == VLLM:
        return vllm_overhead(tp)
    if name.lower() in _ENGINES:
        return _ENGINES[name.lower()]
    if name.lower() in known_strategies():
        found = find_strategies(name)
        return NamedOverhead(found.overhead, found.title)
    raise ValueError(f"no engine's overhead is called {name!r}; known: {', '.join(known_overheads())}")


def overhead_of_preset(preset: str, tp: int = 1) -> NamedOverhead:
    """The overhead of the engine that a preset stands for: dunlin's own but for baselines."""
    return find_overhead(_BASELINES.get(preset, DUNLIN), tp)


def parse_overhead(text: str, tp: int = 1) -> NamedOverhead:
    """An engine's overhead: by name, or in milliseconds, of a step and what a prefill adds, as `1.4` or `1.4,5.8`.

    Raises ValueError.
    """
    if text.lower() in known_overheads():
        return find_overhead(text, tp)
    try:
        times = [float(part) / 1e3 for part in text.split(",")]
        return NamedOverhead(EngineOverhead(*times), "as asked")
    except (ValueError, TypeError):
        known = ", ".join(known_overheads())
        raise ValueError(f"{text!r} is no overhead: give MS, MS,MS (not negative) or a name ({known})") from None
