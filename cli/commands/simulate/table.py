"""The figures of simulations as a table: a row per measure, a column per preset."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from cli.common.output import table

if TYPE_CHECKING:
    from dunlin.workload.loadgen.stats import RunReport
    from simulator.study.report import PresetFigures

_QUANTILES = ("p50", "p90", "p99")
Row = tuple[str, Callable[[Any], str]]
"""The name of a measure, and how it is shown of a run's figures or a class's report."""


def render(found: "Sequence[PresetFigures]") -> str:
    """Presets side by side, and after that each class. No run makes no table."""
    if not found:
        return ""
    whole = [one.report for one in found]
    parts = [_lined(found, [*_cells(_of_reports(whole), whole), *_cells(_OF_RUNS, found)])]
    for label in found[0].classes:
        mine = [one.classes[label] for one in found]
        parts.append(f"\nclass {label or '(none)'}\n" + _lined(found, _cells(_of_reports(mine), mine)))
    links = [
        f"links of an engine and a node, GB/s: {said}" for said in dict.fromkeys(one.links for one in found) if said
    ]
    return "\n".join([*parts, *overheads({one.preset: one.overhead for one in found}), *links])


def overheads(by_preset: Mapping[str, str]) -> list[str]:
    """A line per overhead: what the engine's host adds to its kernels, and the presets that have it."""
    presets: dict[str, list[str]] = {}
    for preset, overhead in by_preset.items():
        presets.setdefault(overhead, []).append(preset)
    lines = [f"engine overhead of {', '.join(names)}: {said}" for said, names in presets.items() if said]
    return ["", *lines] if lines else []


def _lined(found: "Sequence[PresetFigures]", rows: Sequence[Sequence[str]]) -> str:
    return table(("", *(one.preset for one in found)), rows)


def _cells(rows: Sequence[Row], values: Sequence[Any]) -> list[tuple[str, ...]]:
    return [(name, *(show(value) for value in values)) for name, show in rows]


def _quantiles(title: str, unit: str, field: str, scale: float = 1.0) -> list[Row]:
    return [(f"{title} {name} {unit}", _quantile(field, name, scale)) for name in _QUANTILES]


def _quantile(field: str, name: str, scale: float) -> Callable[[Any], str]:
    return lambda one: _digits(scale * getattr(getattr(one, field), name))


def _digits(value: float) -> str:
    if value == inf:
        return "never"
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


_LOST: list[Row] = [
    ("refused", lambda one: str(one.refused)),
    ("expired", lambda one: str(one.expired)),
    ("failed", lambda one: str(one.errors)),
    ("no first token", lambda one: str(one.unanswered)),
    ("clipped", lambda one: str(one.clipped)),
]
"""Shown also where they are 0: what never came counts as infinitely late in TTFT and JCT."""
_LATENCIES = [
    *_quantiles("TTFT", "s", "ttft_s"),
    *_quantiles("TPOT", "ms", "tpot_s", 1000.0),
    *_quantiles("JCT", "s", "jct_s"),
]
_SLO: list[Row] = [
    ("SLO met", lambda one: f"{one.slo_attainment:.1%}"),
    ("goodput requests/s", lambda one: f"{one.goodput_per_s:.2f}"),
]
_OF_RUNS: list[Row] = [
    *_quantiles("queueing", "s", "queueing_s"),
    ("engines busy", lambda one: f"{one.utilisation:.1%}"),
    ("memory mean / max", lambda one: f"{one.memory_mean:.0%} / {one.memory_max:.0%}"),
    ("preemptions", lambda one: str(one.preemptions)),
    ("migrations", lambda one: str(one.migrations)),
    ("KV moved GB", lambda one: f"{one.moved_bytes / 1e9:.2f}"),
    ("prompt found cached", lambda one: f"{one.cached_share:.1%}"),
]


def _of_reports(found: "Sequence[RunReport]") -> list[Row]:
    return [
        ("completed", lambda one: f"{one.completed} of {one.requests}"),
        *_LOST,
        ("requests/s", lambda one: f"{one.requests_per_s:.2f}"),
        ("output tokens/s", lambda one: f"{one.output_tokens_per_s:.0f}"),
        *(_SLO if found[0].slo_attainment is not None else []),
        *_LATENCIES,
    ]
