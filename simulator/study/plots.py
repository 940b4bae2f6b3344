"""Plots of simulations: latency distributions, load and memory over time, a timeline of the instances.

Needs matplotlib (the extra `sim`); reads records and tracks, no core.
"""

from collections.abc import Mapping, Sequence
from math import ceil, floor, inf, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dunlin.messages.types import GroupRole
from simulator.study.samples import InstanceTrack
from simulator.study.track_stats import column_sums, counter_rises, full_height, kv_usage, role_intervals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 110
_MOST_LANES = 48
COLOURS = ("#1f5fa8", "#d9822b", "#2f8f5b", "#b03a5b", "#6d55a3", "#7a6a55", "#14919b", "#a39a1c")
"""Of what is compared, in its order."""
_MEMORY = "#27384d"
_SLO = "#555555"
_MOST_TICKS = 7
_MARKS = (("preemptions", "v", "#c0262d"), ("migrations", ">", "#e0a100"))
_PARTS = ("#9bbbd9", "#e8b98a", "#a4cfae", "#d5a3bd", "#c2b5de", "#cbc3a6")


class PlotsMissing(Exception):
    """matplotlib is not installed."""


def cdfs(path: Path, measures: Mapping[str, Mapping[str, Sequence[float]]], limits: Mapping[str, float]) -> None:
    """Cumulative distributions: `measures[name][preset]` are values in seconds, infinite for what never came, so that
    the curve of a preset that lost requests ends below 1. `limits[name]` is drawn as the SLO.
    """
    save_figure(cdf_figure(measures, limits)[0], path)


def cdf_figure(
    measures: Mapping[str, Mapping[str, Sequence[float]]], limits: Mapping[str, float]
) -> "tuple[Figure, list[Axes]]":
    """What `cdfs` writes."""
    figure, axes = new_figure(2, 2, 10.0, 6.8)
    for axis, (name, series) in zip(axes, measures.items(), strict=False):
        for index, (preset, values) in enumerate(series.items()):
            _cdf(axis, values, preset, COLOURS[index % len(COLOURS)])
        axis.set(title=name, xlabel="time", ylabel="share of requests", ylim=(0, 1.01))
        axis.grid(alpha=0.3)
        if name in limits:
            _limit(axis, limits[name])
        _time_axis(axis)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", fontsize=8, ncols=6)
    return figure, axes


def _cdf(axis: "Axes", values: Sequence[float], label: str, colour: str) -> None:
    ordered = sorted(value for value in values if value < inf)
    at_most = [(index + 1) / len(values) for index in range(len(ordered))]
    axis.plot([max(value, 1e-4) for value in ordered], at_most, label=label, color=colour, linewidth=1.6)


def _limit(axis: "Axes", limit_s: float) -> None:
    """The SLO as a line, named beside it on the side of what meets it."""
    axis.axvline(limit_s, color=_SLO, linestyle=":", linewidth=1.4)
    axis.annotate(
        f"SLO {seconds_text(limit_s)}",
        (limit_s, 0),
        xycoords=axis.get_xaxis_transform(),
        xytext=(-4, 4),
        textcoords="offset points",
        rotation=90,
        ha="right",
        va="bottom",
        color=_SLO,
        fontsize=8,
    )


def _time_axis(axis: "Axes") -> None:
    """Logarithmic, with few enough ticks in plain numbers that their labels stand apart."""
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    if low <= 0:  # nothing is drawn
        low, high = 1e-3, 1.0
    axis.set_xticks(*_ticks(low, high))
    axis.set_xticks([], minor=True)
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlim(low, high)


def _ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Places between `low` and `high` seconds, of the finest series with at most `_MOST_TICKS`, and their labels."""
    first, last = floor(log10(low)), ceil(log10(high))
    series = [sorted({factor * 10.0**power for factor in (1, 2, 5) for power in range(first, last + 1)})]
    for every in (1, 2, 3, 4):
        series.append([10.0**power for power in range(first, last + 1) if power % every == 0])
    kept = [[at for at in ticks if low <= at <= high] for ticks in series]
    fine = [low + step * (high - low) / 4 for step in range(1, 4)]  # of a range too narrow for round places
    chosen = next((ticks for ticks in kept if 2 <= len(ticks) <= _MOST_TICKS), fine if high < 10 * low else kept[-1])
    return chosen, [seconds_text(at) for at in chosen]


def seconds_text(value: float) -> str:
    """In the unit in which it reads best."""
    if value >= 0.9995:
        return f"{value:.3g} s" if value < 999.5 else f"{value:.0f} s"
    return f"{value * 1e3:.3g} ms" if value >= 0.9995e-3 else f"{value * 1e6:.3g} µs"


def over_time(path: Path, arrivals: Sequence[float], runs: Mapping[str, Mapping[str, InstanceTrack]]) -> None:
    """What came in and how the clusters stood, one line per preset. `arrivals` are times in seconds."""
    figure, axes = new_figure(4, 1, 10.0, 8.4, sharex=True)
    stop_s = max((track.at_s[-1] for tracks in runs.values() for track in tracks.values() if track.at_s), default=1.0)
    width_s = max(1.0, _round(stop_s / 120))
    axes[0].hist(arrivals, bins=_edges(stop_s, width_s), color="#8a9099", weights=[1 / width_s] * len(arrivals))
    axes[0].set_ylabel("arrivals/s")
    for index, (preset, tracks) in enumerate(runs.items()):
        colour = COLOURS[index % len(COLOURS)]
        for axis, (times, values) in zip(axes[1:], _sums(list(tracks.values())), strict=True):
            label = preset if axis is axes[1] else ""
            axis.plot(times[: len(values)], values, color=colour, linewidth=1.2, label=label)
    for axis, label in zip(axes[1:], ("running", "waiting", "memory used, %"), strict=True):
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.set_ylim(bottom=0)
    axes[3].set(ylim=(0, 102), xlabel="seconds")
    figure.legend(loc="outside upper center", fontsize=8, ncols=6)
    save_figure(figure, path)


def timeline(path: Path, title: str, tracks: Mapping[str, InstanceTrack]) -> None:
    """A lane per instance: how full its memory is (height), its group and part (colour), preemptions (marks).

    The full height is all of its memory, or what the legend says.
    """
    shown = list(tracks.items())[:_MOST_LANES]
    figure, (axis,) = new_figure(1, 1, 10.0, 1.9 + 0.42 * len(shown))
    shared = _shared_groups(tracks)
    colours: dict[tuple[int, int], str] = {}
    full = full_height([share for _, track in shown for share in kv_usage(track)])
    for lane, (_, track) in enumerate(shown):
        for stretch in role_intervals(track):
            key = (stretch.group if stretch.group in shared else 0, stretch.part)
            colour = colours.setdefault(key, _PARTS[len(colours) % len(_PARTS)])
            axis.broken_barh([(stretch.start_s, stretch.stop_s - stretch.start_s)], (lane, 0.9), color=colour)
        used = [lane + 0.9 - 0.9 * share / full for share in kv_usage(track)]
        axis.fill_between(track.at_s, lane + 0.9, used, color=_MEMORY, alpha=0.65, linewidth=0)
        _marks(axis, track, lane)
    more = f" (the first {len(shown)} of {len(tracks)})" if len(shown) < len(tracks) else ""
    axis.set(xlabel="seconds", title=title + more, ylim=(len(shown), 0))
    axis.set_yticks([lane + 0.45 for lane in range(len(shown))], [name for name, _ in shown], fontsize=8)
    axis.margins(x=0)
    figure.legend(handles=_legend(colours, full), loc="outside lower center", ncols=5, fontsize=8)
    save_figure(figure, path)


def _shared_groups(tracks: Mapping[str, InstanceTrack]) -> set[int]:
    """Groups that more than one instance belonged to."""
    members: dict[int, set[str]] = {}
    for name, track in tracks.items():
        for group in dict.fromkeys(track.group):
            members.setdefault(group, set()).add(name)
    return {group for group, names in members.items() if len(names) > 1}


def _legend(colours: Mapping[tuple[int, int], str], full: float) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    parts = [
        Patch(color=colour, label=f"group {group}: {_part(part)}" if group else _part(part))
        for (group, part), colour in colours.items()
    ]
    marks = [
        Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=5, label=column)
        for column, marker, colour in _MARKS
    ]
    used = "memory used" if full == 1.0 else f"memory used (full height: {full:.0%})"
    return [Patch(color=_MEMORY, alpha=0.65, label=used), *parts, *marks]


def _part(part: int) -> str:
    return GroupRole(part).name.lower().replace("_", " ")


def _marks(axis: "Axes", track: InstanceTrack, lane: int) -> None:
    for column, marker, colour in _MARKS:
        times = counter_rises(track, getattr(track, f"{column}_total"))
        axis.plot(times, [lane + 0.16] * len(times), marker, color=colour, markersize=4, linestyle="none")


def _sums(tracks: Sequence[InstanceTrack]) -> list[tuple[Sequence[float], Sequence[float]]]:
    """Running, waiting and the share of memory in percent, over all instances, with the times of the samples."""
    times: Sequence[float] = tracks[0].at_s if tracks else []
    used = [100 * value / len(tracks) for value in column_sums(kv_usage(track) for track in tracks)]
    return [
        (times, column_sums(track.running for track in tracks)),
        (times, column_sums(track.waiting for track in tracks)),
        (times, used),
    ]


def _edges(stop_s: float, width_s: float) -> list[float]:
    return [index * width_s for index in range(int(stop_s / width_s) + 2)]


def _round(width_s: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 … seconds."""
    step = 1.0
    for factor in (2, 2.5, 2) * 6:
        if step >= width_s:
            break
        step *= factor
    return step


def new_figure(
    rows: int, columns: int, width: float, height: float, sharex: bool = False
) -> "tuple[Figure, list[Axes]]":
    """A figure of so many inches and its axes, row by row. Raises PlotsMissing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise PlotsMissing(f"pictures need {error.name}: pip install 'dunlin[sim]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    made: Any = figure.subplots(rows, columns, sharex=sharex, squeeze=False)
    return figure, list(made.flat)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a PNG, the same bytes for the same figure. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and no version inside: the same run draws the same bytes.
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})
