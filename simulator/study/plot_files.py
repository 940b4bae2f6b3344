"""The plots of a study and their file names; `plots` draws them."""

from collections.abc import Sequence
from math import inf
from pathlib import Path

from dunlin.workload.loadgen.slo import Slo, Slos
from dunlin.workload.loadgen.stats import request_jct_s, request_tpot_s, request_ttft_s, summarize
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
    over_time(written[1], [one.at_s for one in arrivals], {named_with_losses(one): one.tracks for one in outcomes})
    for outcome in outcomes:
        written.append(path / f"instances-{outcome.preset}.png")
        timeline(written[-1], f"{named_with_losses(outcome)}: memory of each instance", outcome.tracks)
    return written


def _measures(outcomes: Sequence[SimulationOutcome]) -> dict[str, dict[str, list[float]]]:
    """Times by measure and preset, infinite for what never came; TPOT is of completed requests."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in ("TTFT", "TPOT", "queueing", "JCT")}
    for outcome in outcomes:
        records, preset = outcome.records, named_with_losses(outcome)
        done = [record for record in records if record.outcome == "ok" and len(record.token_s) > 1]
        found["TTFT"][preset] = [request_ttft_s(record) for record in records]
        found["TPOT"][preset] = [request_tpot_s(record) for record in done]
        found["queueing"][preset] = [waited if waited >= 0 else inf for waited in outcome.queued_s]
        found["JCT"][preset] = [request_jct_s(record) for record in records]
    return found


def named_with_losses(outcome: SimulationOutcome) -> str:
    """The preset, and how many of its requests were refused, expired, failed or clipped, where any were."""
    found = summarize(outcome.records)
    counts = {"refused": found.refused, "expired": found.expired, "failed": found.errors, "clipped": found.clipped}
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{outcome.preset} ({said})" if said else outcome.preset
