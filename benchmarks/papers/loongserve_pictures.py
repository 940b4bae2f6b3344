"""LoongServe's figures as pictures: latencies per token by rate (10, 11), and kept objectives by load (12, 13)."""

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.papers.loongserve_results import Panel
from benchmarks.papers.loongserve_runs import Row
from simulator.study.plots import COLOURS, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GOAL = "#555555"
_LATENCIES: tuple[tuple[str, Callable[[Row], float], Callable[[Row], float]], ...] = (
    ("per token, ms", lambda row: row.token_ms, lambda row: row.token_slo),
    ("input, ms/token", lambda row: row.input_ms, lambda row: row.input_slo),
    ("output, ms/token", lambda row: row.output_ms, lambda row: row.output_slo),
)


def draw(folder: Path, suffix: str, panels: Sequence[Panel]) -> list[Path]:
    """Draw the figures of which there are panels; returns the files.

    Raises:
        PlotsMissing: matplotlib is not installed.
        OSError: a file cannot be written.
    """
    made = []
    for figure in ("10", "11", "12", "13"):
        shown = [panel for panel in panels if panel.scene.figure == figure]
        if shown:
            made.append(folder / f"fig{figure}{suffix}.png")
            (_kept if figure in ("12", "13") else _latencies)(made[-1], shown)
    return made


def _latencies(path: Path, panels: Sequence[Panel]) -> None:
    """A row of three axes for each panel; the objective is dotted."""
    figure, axes = new_figure(len(panels), len(_LATENCIES), 9.6, 2.3 * len(panels) + 0.6)
    for place, panel in enumerate(panels):
        for column, (label, value, slo) in enumerate(_LATENCIES):
            axis = axes[len(_LATENCIES) * place + column]
            _lines(axis, panel, value)
            first = panel.scene.systems[0].name
            if rates := panel.rates(first):
                axis.axhline(panel.mean(first, rates[0], slo), color=_GOAL, linestyle=":", linewidth=1.2)
            axis.set_yscale("log")
            axis.set_title(f"{panel.scene.title}: {label}", fontsize=8)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=8, ncols=6)
    save_figure(figure, path)


def _kept(path: Path, panels: Sequence[Panel]) -> None:
    """The share of requests that kept their objectives, by rate."""
    figure, axes = new_figure(1, len(panels), 3.2 * max(2, len(panels)), 3.2)
    for axis, panel in zip(axes, panels, strict=True):
        _lines(axis, panel, lambda row: row.met)
        axis.axhline(0.9, color=_GOAL, linestyle=":", linewidth=1.2)
        axis.set_title(f"{panel.scene.title}: share of requests in time", fontsize=8)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=8, ncols=6)
    save_figure(figure, path)


def _lines(axis: "Axes", panel: Panel, value: Callable[[Row], float]) -> None:
    """A line for each system; what never came is not drawn."""
    for place, system in enumerate(panel.scene.systems):
        rates = panel.rates(system.name)
        found = [panel.mean(system.name, rate, value) for rate in rates]
        shown = [each if isfinite(each) else float("nan") for each in found]
        axis.plot(rates, shown, color=COLOURS[place], label=system.name, linewidth=1.5, marker="o", markersize=3)
    axis.set_xlabel("requests/s", fontsize=8)
    axis.grid(alpha=0.3)
