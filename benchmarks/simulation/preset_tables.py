"""What `benchmarks.simulation.presets` found, as tables in Markdown and two pictures. Knows the rows of the results
file alone."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_COLOURS = (
    "#1f5fa8", "#d9822b", "#2f8f5b", "#b03a5b", "#6d55a3", "#7a6a55", "#14919b",
    "#84a9d1", "#eec08a", "#9dcbb0", "#d698ab", "#b9abd5", "#bdb3a6", "#8fcdd2",
)  # fmt: skip
_MARKS = "osD^v<>pPXdh8*"
_CLASSES = ("", "batch")


def print_tables(rows: Sequence[Row], out: Path | None) -> None:
    """Print all tables; draw into `out`, if it is given (needs matplotlib)."""
    for text in (_tuned(rows), *_matrices(rows), _swept(rows), _batch(rows)):
        if text:
            print(text + "\n")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for draw, name in ((_draw_matrix, "attainment.png"), (_draw_sweep, "goodput.png")):
            draw(rows, out / name)


# --- tables ----------------------------------------------------------------------------------------------------------


def _tuned(rows: Sequence[Row]) -> str:
    """The settings of each preset for each trace, and what the tuning window said of all that was tried."""
    runs = _of(rows, "tune")
    workloads = _names(runs, "workload")
    lines = [[preset, *(_choice(runs, name, preset) for name in workloads)] for preset in _names(runs, "preset")]
    return _table(["preset", *workloads], lines) if runs else ""


def _choice(rows: Sequence[Row], workload: str, preset: str) -> str:
    mine = [row for row in rows if (row["run"]["workload"], row["run"]["preset"]) == (workload, preset)]
    if not mine:
        return "-"
    shares = [_share(row) for row in mine]
    best = mine[shares.index(max(shares))]
    return f"{_settings(best)} ({max(shares):.0%}; the worst {min(shares):.0%})"


def _settings(row: Row) -> str:
    return ", ".join(f"{name.rpartition('.')[2]} {value:g}" for name, value in row["run"]["settings"])


_MEASURES: dict[str, Callable[[Row], str]] = {
    "TTFT p50 / p90 / p99, s": lambda row: _spread(row["report"]["ttft_s"], 1.0),
    "TPOT p50 / p90 / p99, ms": lambda row: _spread(row["report"]["tpot_s"], 1000.0),
    "JCT p50 / p90, s": lambda row: _spread(row["report"]["jct_s"], 1.0, ("p50", "p90")),
    "queueing p90, s": lambda row: _digits(row["queueing_s"]["p90"]),
    "engines busy": lambda row: f"{row['utilisation']:.0%}",
    "memory, mean": lambda row: f"{row['memory_mean']:.0%}",
    "preemptions": lambda row: str(row["preemptions"]),
    "moves": lambda row: str(row["migrations"]),
    "KV moved, GB": lambda row: f"{row['moved_bytes'] / 1e9:.0f}",
    "found cached": lambda row: f"{row['cached_share']:.0%}",
}


def _matrices(rows: Sequence[Row]) -> Iterator[str]:
    """A table for each set-up that its title names."""
    runs = _of(rows, "matrix")
    for setup in dict.fromkeys(map(_setup, runs)):
        mine = [row for row in runs if _setup(row) == setup]
        workload, overhead, seconds, rate = setup
        seeds = _names(mine, "seed")
        lines = [line for preset in _names(mine, "preset") for line in _lines(mine, preset, seeds)]
        header = ["preset", *(f"SLO met, seed {seed}" for seed in seeds), *_LOST, *_MEASURES]
        alike = f", every engine's overhead: {overhead}" if overhead else ""
        title = f"{workload}, {seconds:g} s at {rate:g}/s{alike}"
        yield f"{title}\n\n{_table(header, lines)}\n\n{_overheads(mine)}"


def _setup(row: Row) -> tuple[str, str, float, float]:
    run = row["run"]
    return run["workload"], run["overhead"], run["seconds"], run["rate"]


_LOST = ("refused / expired / failed", "no first token", "clipped")


def _lost(rows: Sequence[Row]) -> list[str]:
    """What was lost or shortened, of all seeds together."""
    totals = {
        name: sum(int(row["figures"]["report"][name]) for row in rows)
        for name in ("refused", "expired", "errors", "unanswered", "clipped")
    }
    ends = " / ".join(str(totals[name]) for name in ("refused", "expired", "errors"))
    return [ends, str(totals["unanswered"]), str(totals["clipped"])]


def _overheads(rows: Sequence[Row]) -> str:
    """What each preset's engine was taken to add to its kernels: it tells presets apart as policies do."""
    presets: dict[str, list[str]] = {}
    for row in rows:
        names = presets.setdefault(row["figures"].get("overhead") or "unknown", [])
        if row["run"]["preset"] not in names:
            names.append(row["run"]["preset"])
    told = "; ".join(f"{overhead}: {', '.join(names)}" for overhead, names in presets.items())
    return f"The engine's host adds: {told}."


def _lines(rows: Sequence[Row], preset: str, seeds: Sequence[Any]) -> Iterator[list[str]]:
    """A preset's line; one for each of its settings where it ran with several, as tuned and not."""
    found: dict[str, list[Row]] = {}
    for row in (row for row in rows if row["run"]["preset"] == preset):
        found.setdefault(_settings(row), []).append(row)
    for settings, mine in found.items():
        yield _line(preset if len(found) == 1 else f"{preset} ({settings or 'no setting'})", mine, seeds)


def _line(name: str, rows: Sequence[Row], seeds: Sequence[Any]) -> list[str]:
    """Shares per seed, what was lost of all seeds together, all else of the first."""
    by_seed = {row["run"]["seed"]: row for row in rows}
    shares = [f"{_share(by_seed[seed]):.1%}" if seed in by_seed else "-" for seed in seeds]
    first = by_seed[min(by_seed)]["figures"]
    return [name, *shares, *_lost(list(by_seed.values())), *(measure(first) for measure in _MEASURES.values())]


def _swept(rows: Sequence[Row]) -> str:
    """Requests a second that met the objective, of those that came."""
    runs = _rates(rows)
    rates = sorted({row["run"]["rate"] for row in runs})
    lines = []
    for preset in _names(runs, "preset"):
        goods = {row["run"]["rate"]: _good(row) for row in runs if row["run"]["preset"] == preset}
        lines.append([preset, *(f"{goods[rate]:.2f}" if rate in goods else "-" for rate in rates)])
    return _table(["preset", *(f"{rate:g}/s" for rate in rates)], lines) if len(rates) > 1 else ""


def _batch(rows: Sequence[Row]) -> str:
    lines = []
    for row in _of(rows, "batch"):
        mine, other = (row["figures"]["classes"][label] for label in _CLASSES)
        lines.append([
            row["run"]["preset"], f"{mine['slo_attainment']:.1%}", _spread(mine["ttft_s"], 1.0),
            _spread(mine["tpot_s"], 1000.0), f"{other['completed']} of {other['requests']}",
            f"{row['figures']['report']['output_tokens_per_s']:.0f}",
        ])  # fmt: skip
    header = [
        "preset",
        "SLO met, interactive",
        "TTFT p50 / p90 / p99, s",
        "TPOT p50 / p90 / p99, ms",
        "batch completed",
    ]
    return _table([*header, "output tokens/s"], lines) if lines else ""


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    marked = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in marked)


def _spread(values: Row, scale: float, names: Sequence[str] = ("p50", "p90", "p99")) -> str:
    return " / ".join(_digits(scale * values[name]) for name in names)


def _digits(value: float) -> str:
    if value == inf:
        return "never"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


# --- rows ------------------------------------------------------------------------------------------------------------


def _of(rows: Sequence[Row], stage: str) -> list[Row]:
    return [row for row in rows if row["run"]["stage"] == stage]


def _names(rows: Sequence[Row], field: str) -> list[Any]:
    """In the order in which they came."""
    return list(dict.fromkeys(row["run"][field] for row in rows))


def _rates(rows: Sequence[Row]) -> list[Row]:
    """The sweep, with the matrix's run of the same trace and seed."""
    swept = _of(rows, "sweep")
    same = {(row["run"]["workload"], row["run"]["seed"]) for row in swept}
    matrix = [row for row in _of(rows, "matrix") if not row["run"]["overhead"]]
    return [row for row in matrix if (row["run"]["workload"], row["run"]["seed"]) in same] + swept


def _share(row: Row) -> float:
    return float(row["figures"]["report"]["slo_attainment"])


def _good(row: Row) -> float:
    return _share(row) * float(row["run"]["rate"])


# --- pictures --------------------------------------------------------------------------------------------------------


def _draw_matrix(rows: Sequence[Row], path: Path) -> None:
    """A group of bars per trace: the mean of the seeds, and a mark for each."""
    from matplotlib.figure import Figure

    runs = [row for row in _of(rows, "matrix") if not row["run"]["overhead"]]
    workloads, presets = _names(runs, "workload"), _names(runs, "preset")
    figure = Figure(figsize=(12, 4.4), dpi=110, layout="constrained")
    axis = figure.subplots()
    width = 0.84 / max(1, len(presets))
    for index, preset in enumerate(presets):
        for group, workload in enumerate(workloads):
            mine = [_share(row) for row in runs if (row["run"]["workload"], row["run"]["preset"]) == (workload, preset)]
            at = group - 0.42 + (index + 0.5) * width
            label = preset if group == 0 else None
            axis.bar(at, 100 * sum(mine) / len(mine) if mine else 0, 0.9 * width, color=_COLOURS[index], label=label)
            axis.plot([at] * len(mine), [100 * share for share in mine], ".", color="#222222", markersize=4)
    axis.set(xticks=range(len(workloads)), ylabel="requests that met the objective, %", ylim=(0, 101))
    axis.set_xticklabels(workloads)
    axis.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=7, frameon=False, fontsize=9)
    figure.savefig(path)


def _draw_sweep(rows: Sequence[Row], path: Path) -> None:
    """Requests that met the objective, over requests that came; on the dotted line all do."""
    from matplotlib.figure import Figure

    runs = _rates(rows)
    figure = Figure(figsize=(7, 4.4), dpi=110, layout="constrained")
    axis = figure.subplots()
    rates = sorted({row["run"]["rate"] for row in runs})
    axis.plot(rates, rates, ":", color="#555555", linewidth=1.2, label="all of them")
    for index, preset in enumerate(_names(runs, "preset")):
        points = sorted((row["run"]["rate"], _good(row)) for row in runs if row["run"]["preset"] == preset)
        xs, ys = zip(*points, strict=True)
        axis.plot(xs, ys, marker=_MARKS[index], color=_COLOURS[index], linewidth=1.5, markersize=5, label=preset)
    axis.set(xlabel="requests/s", ylabel="requests/s that met the objective", ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, frameon=False)
    figure.savefig(path)
