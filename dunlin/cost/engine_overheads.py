"""What the hosts of engines add to their kernels, by engine: measured of a baseline, dunlin's own from its path.

A device's coefficients are of kernels alone. An engine of `strategy_files` that was measured has one too.
"""

from dataclasses import dataclass

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
VLLM = "vllm-a800-tp8"
_ENGINES = {
    DUNLIN: NamedOverhead(
        EngineOverhead(0.00045),
        "dunlin's path between dispatcher and instance at 64 running sequences; launching kernels was not measured",
    ),
    VLLM: NamedOverhead(
        EngineOverhead(0.0165, 0.005),
        "vLLM as LoongServe measured it over 8 A800; on fewer GPUs it is likely less, which was not measured",
    ),
}
_BASELINES = {"vllm": VLLM, "fifo": VLLM, "llumnix": VLLM, "distserve": VLLM}
"""Presets that stand for systems built on vLLM, or (DistServe) measured on none of its own."""


def known_overheads() -> list[str]:
    """The names that `find_overhead` knows."""
    return sorted([*_ENGINES, *known_strategies()])


def find_overhead(name: str) -> NamedOverhead:
    """An engine's overhead by name. Raises ValueError."""
    if name.lower() in _ENGINES:
        return _ENGINES[name.lower()]
    if name.lower() in known_strategies():
        found = find_strategies(name)
        return NamedOverhead(found.overhead, found.title)
    raise ValueError(f"no engine's overhead is called {name!r}; known: {', '.join(known_overheads())}")


def overhead_of_preset(preset: str) -> NamedOverhead:
    """The overhead of the engine that a preset stands for: dunlin's own but for baselines."""
    return _ENGINES[_BASELINES.get(preset, DUNLIN)]


def parse_overhead(text: str) -> NamedOverhead:
    """An engine's overhead: by name, or in milliseconds, of a step and what a prefill adds, as `1.4` or `1.4,5.8`.

    Raises ValueError.
    """
    if text.lower() in known_overheads():
        return find_overhead(text)
    try:
        times = [float(part) / 1e3 for part in text.split(",")]
        return NamedOverhead(EngineOverhead(*times), "as asked")
    except (ValueError, TypeError):
        known = ", ".join(known_overheads())
        raise ValueError(f"{text!r} is no overhead: give MS, MS,MS (not negative) or a name ({known})") from None
