"""The plots of a study and their file names; `plots` draws them."""

from collections.abc import Sequence
from pathlib import Path

from dunlin.workload.loadgen.slo import Slo, Slos
from dunlin.workload.loadgen.stats import request_tpot_s
from dunlin.workload.traffic.trace import Arrival
from simulator.study.plots import cdfs, over_time, timeline
from simulator.study.report import SimulationOutcome


def draw_study(
    path: Path, arrivals: Sequence[Arrival], outcomes: Sequence[SimulationOutcome], slos: Slos
) -> list[Path]:
    """Draw the plots of a study into directory `path`; returns the files written.

    Raises:
        PlotsMissing: matplotlib is not installed.
        OSError: a file cannot be written.
    """
    written = [path / "latency.png", path / "load.png"]
    general = slos.get("", Slo())
    limits = {"TTFT": general.ttft, "TPOT": general.tpot, "JCT": general.jct}
    cdfs(written[0], _measures(outcomes), {name: limit for name, limit in limits.items() if limit is not None})
    over_time(written[1], [one.at_s for one in arrivals], {one.preset: one.tracks for one in outcomes})
    for outcome in outcomes:
        written.append(path / f"instances-{outcome.preset}.png")
        timeline(written[-1], f"{outcome.preset}: memory of each instance", outcome.tracks)
    return written


def _measures(outcomes: Sequence[SimulationOutcome]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {name: {} for name in ("TTFT", "TPOT", "queueing", "JCT")}
    for outcome in outcomes:
        done = [record for record in outcome.records if record.outcome == "ok" and record.token_s]
        preset = outcome.preset
        found["TTFT"][preset] = [record.token_s[0] - record.at_s for record in done]
        found["TPOT"][preset] = [request_tpot_s(record) for record in done if len(record.token_s) > 1]
        found["queueing"][preset] = [waited for waited in outcome.queued_s if waited >= 0]
        found["JCT"][preset] = [record.token_s[-1] - record.at_s for record in done]
    return found
