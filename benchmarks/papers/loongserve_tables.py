"""LoongServe's figures as tables: latencies by rate, what is served under the objectives, and the paper's ratios."""

from collections.abc import Callable, Sequence

from benchmarks.papers.loongserve_results import Panel, input_share, missed_share, token_share
from benchmarks.papers.loongserve_runs import Row
from benchmarks.papers.loongserve_scenes import LOONGSERVE

_HEAD = (
    f"{'':12}{'rate/s':>7}{'requests':>9}{'refused':>8}{'expired':>8}{'failed':>7}{'token ms':>9}{'input ms':>9}"
    f"{'output ms':>10}{'TTFT p50':>9}{'p99 s':>8}{'met':>6}"
)
COLUMNS: tuple[tuple[str, Callable[[Row], float]], ...] = (
    ("all tokens", token_share),
    ("input", input_share),
    ("P90 goodput", missed_share),
)
"""What a system serves, by which of a row's values at most 1."""


def show(panel: Panel) -> None:
    """Print a panel's rows, means over all seeds. `met`: requests that kept their own objectives."""
    scene = panel.scene
    print(f"\nFig. {scene.figure}, {scene.title}; paper: {scene.paper}\n{_HEAD}")
    for system in scene.systems:
        for rate in panel.rates(system.name):
            print(_line(panel, system.name, rate))
    first = scene.systems[0].name
    if rates := panel.rates(first):
        token, prompt, output = (
            panel.mean(first, rates[0], value)
            for value in (lambda row: row.token_slo, lambda row: row.input_slo, lambda row: row.output_slo)
        )
        print(f"{'objective':12}{'':39}{token:9.2f}{prompt:9.2f}{output:10.0f}")


def _line(panel: Panel, system: str, rate: float) -> str:
    def mean(value: Callable[[Row], float]) -> float:
        return panel.mean(system, rate, value)

    counts = f"{mean(lambda row: row.requests):9.0f}{mean(lambda row: row.refused):8.0f}"
    counts += f"{mean(lambda row: row.expired):8.0f}{mean(lambda row: row.failed):7.0f}"
    times = f"{mean(lambda row: row.token_ms):9.2f}{mean(lambda row: row.input_ms):9.2f}"
    times += f"{mean(lambda row: row.output_ms):10.1f}{mean(lambda row: row.ttft_p50):9.2f}"
    return f"{system:12}{rate:7g}{counts}{times}{mean(lambda row: row.ttft_p99):8.2f}{mean(lambda row: row.met):6.0%}"


def summarise(panels: Sequence[Panel]) -> None:
    """Print as one table in Markdown what each system serves under each objective, and LoongServe over it."""
    print("\n| requests/s under the objective | of | " + " | ".join(_names(panels)) + " |")
    print("|---|---|" + "---|" * len(_names(panels)))
    for panel in panels:
        for label, value in COLUMNS:
            cells = [_cell(panel, name, value) for name in _names(panels)]
            print(f"| Fig. {panel.scene.figure}: {panel.scene.title} | {label} | {' | '.join(cells)} |")


def _names(panels: Sequence[Panel]) -> list[str]:
    return list(dict.fromkeys(system.name for panel in panels for system in panel.scene.systems))


def _cell(panel: Panel, name: str, value: Callable[[Row], float]) -> str:
    """The rate, and how many times that LoongServe serves."""
    if name not in [system.name for system in panel.scene.systems] or not panel.rates(name):
        return ""
    rate, is_exceeded = panel.most(name, value)
    text = f"{rate:.3g}" if is_exceeded else f">= {rate:.3g}"
    ours, is_ours = panel.most(LOONGSERVE.name, value)
    if name == LOONGSERVE.name or not rate or not is_exceeded or not ours:
        return text
    return f"{text} ({'' if is_ours else '>= '}{ours / rate:.2f}x)"
