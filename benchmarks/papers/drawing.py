"""ConServe's figures as pictures: over time (5, 6), by variation and rate (7), and the ladder (8). Needs matplotlib."""

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.papers.conserve_scenes import ONLINE_ONLY, Scene, Setup
from benchmarks.papers.results import Found
from benchmarks.papers.running import Row, Window
from simulator.study.plots import COLOURS, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GOAL = "#555555"
_PAPER = "#c9c2b4"
_LADDER = {"online_only": (354, 0), "vllm++": (1346, 3674), "+ scheduler": (446, 2951), "+ prefetch": (317, 3818)}
"""What Fig. 8 prints: p99 of TTFT in ms and batch tokens per second."""


def draw(folder: Path, setup: Setup, found: Found) -> list[Path]:
    """Draw the figures of which there are rows; returns the files.

    Raises:
        PlotsMissing: matplotlib is not installed.
        OSError: a file cannot be written.
    """
    made = []
    for figure, name in (("real", "fig5"), ("phases", "fig6")):
        for scene in found.scenes.get(figure, ()):
            made.append(folder / f"{name}-{setup.name}.png")
            _over_time(made[-1], f"{setup.title}: {scene.title}", scene, found)
    if "cv" in found.scenes and "rate" in found.scenes:
        made.append(folder / f"fig7-{setup.name}.png")
        _varied(made[-1], setup, found)
    for scene in found.scenes.get("ladder", ()):
        made.append(folder / f"fig8-{setup.name}.png")
        _ladder(made[-1], f"{setup.title}: {scene.title}", scene, found)
    return made


def _over_time(path: Path, title: str, scene: Scene, found: Found) -> None:
    """p99s and all tokens by window, of the first seed; the objectives are those of online requests alone."""
    figure, axes = new_figure(3, 1, 8.0, 6.4, sharex=True)
    values: tuple[Callable[[Window], float], ...] = (
        lambda window: window.ttft_p99,
        lambda window: window.tpot_p99,
        lambda window: window.online + window.offline,
    )
    alone = found.first(scene, ONLINE_ONLY.name)
    for place, system in enumerate(scene.systems):
        windows = found.first(scene, system.name).windows
        for axis, value in zip(axes, values, strict=True):
            _line(axis, [window.start_s for window in windows], [value(each) for each in windows], place, system.name)
    for axis, limit in zip(axes, (alone.ttft_p99, alone.tpot_p99), strict=False):
        axis.axhline(limit, color=_GOAL, linestyle=":", linewidth=1.2)
    for axis, label in zip(axes, ("TTFT p99, ms", "TPOT p99, ms", "tokens/s"), strict=True):
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    for axis in axes[:2]:
        axis.set_yscale("log")
    axes[2].set(xlabel="seconds", ylim=(0, None))
    axes[0].set_title(title, fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=8, ncols=6)
    save_figure(figure, path)


def _varied(path: Path, setup: Setup, found: Found) -> None:
    """Means over all seeds, by variation (left) and by rate."""
    figure, axes = new_figure(3, 2, 8.0, 6.8)
    values: tuple[tuple[str, Callable[[Row], float]], ...] = (
        ("TTFT p99, ms", lambda row: row.ttft_p99),
        ("TPOT p99, ms", lambda row: row.tpot_p99),
        ("offline tokens/s", lambda row: row.offline),
    )
    for row, (label, value) in enumerate(values):
        for column, name in enumerate(("cv", "rate")):
            axis, shown = axes[2 * row + column], found.scenes[name]
            for place, system in enumerate(shown[0].systems):
                means = [found.mean(scene, system.name, value) for scene in shown]
                _line(axis, [scene.value for scene in shown], means, place, system.name, marker="o")
            axis.set(ylabel=label, xlabel="CV" if name == "cv" else f"requests/s, x {setup.rate_factor:g}")
            axis.grid(alpha=0.3)
            if row == 0:
                axis.set_yscale("log")
    figure.suptitle(f"{setup.title}: Fig. 7, rate 2 (left), CV 1 (right)", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=8, ncols=6)
    save_figure(figure, path)


def _line(axis: "Axes", at: Sequence[float], values: Sequence[float], place: int, name: str, marker: str = "") -> None:
    """What never came is not drawn."""
    shown = [value if isfinite(value) and value > 0 else float("nan") for value in values]
    axis.plot(at, shown, color=COLOURS[place], label=name, linewidth=1.5, marker=marker, markersize=4)


def _ladder(path: Path, title: str, scene: Scene, found: Found) -> None:
    """Bars beside the paper's, means over all seeds."""
    figure, axes = new_figure(1, 2, 8.4, 3.8)
    names = [system.name for system in scene.systems]
    bars: tuple[tuple[str, Callable[[Row], float]], ...] = (
        ("TTFT p99, ms", lambda row: row.ttft_p99),
        ("offline tokens/s", lambda row: row.offline),
    )
    for index, (axis, (label, value)) in enumerate(zip(axes, bars, strict=True)):
        means = [found.mean(scene, name, value) for name in names]
        axis.bar([at + 0.2 for at in range(len(names))], means, 0.4, color=COLOURS[0], label="here")
        paper = [_LADDER.get(name, (0, 0))[index] for name in names]
        axis.bar([at - 0.2 for at in range(len(names))], paper, 0.4, color=_PAPER, label="paper (A100)")
        axis.set_xticks(range(len(names)), names, rotation=20, fontsize=8)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3, axis="y")
    axes[0].set_yscale("log")
    figure.suptitle(title, fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", fontsize=8, ncols=2)
    save_figure(figure, path)
