"""The figures of a simulation by which presets are compared. Pure: from records and tracks to numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from dunlin.workload.loadgen.slo import Slos, meets_slo
from dunlin.workload.loadgen.stats import Percentiles, RequestRecord, RunReport, percentiles, summarize
from simulator.study.samples import InstanceTrack
from simulator.study.track_stats import kv_usage, last_value, mean_over_time


@dataclass(frozen=True, slots=True)
class PresetFigures:
    """The figures of one preset's run. Times in seconds, shares from 0 to 1.

    `queueing_s`: from arrival until an engine first had the request, infinite if none ever had. `utilisation` is the
    share of time in which an engine had a step, `memory_mean` the mean share of slots in use, both over all instances
    from the first arrival to the last token. `classes` has a report per class where there is more than one. `slowest`
    names requests whose first token took longest: `--explain` takes them. `overhead`, `links`: see
    `SimulationOutcome`.
    """

    preset: str
    instances: int
    report: RunReport
    queueing_s: Percentiles
    utilisation: float
    memory_mean: float
    memory_max: float
    preemptions: int
    migrations: int
    moved_bytes: int
    cached_share: float
    wall_s: float = 0.0
    classes: Mapping[str, RunReport] = field(default_factory=dict)
    slowest: tuple[str, ...] = ()
    overhead: str = ""
    links: str = ""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The raw results of a simulation.

    `queued_s[i]`: seconds until `records[i]` was first in an engine, negative if it never was. `tracks`: samples by
    instance name. `wall_s`: seconds on this machine for `events` deliveries. `story`: the explanation of a request.
    `overhead`: what the engine's host was taken to add to its kernels, and the source.
    `links`: bandwidths of an engine and a node, GB/s of each direction.
    """

    preset: str
    records: Sequence[RequestRecord]
    queued_s: Sequence[float]
    tracks: Mapping[str, InstanceTrack]
    wall_s: float = 0.0
    events: int = 0
    story: tuple[str, ...] = ()
    overhead: str = ""
    links: str = ""


def figures(outcome: SimulationOutcome, slos: Slos) -> PresetFigures:
    """The figures of one run."""
    records, tracks = outcome.records, list(outcome.tracks.values())
    met_it = meets_slo(records, slos) if slos else None
    whole = summarize(records, met_it)
    start_s = min((record.at_s for record in records), default=0.0)
    stop_s = start_s + whole.span_s
    used = [kv_usage(track) for track in tracks]
    means = [mean_over_time(track.at_s, shares, stop_s) for track, shares in zip(tracks, used, strict=True)]
    return PresetFigures(
        preset=outcome.preset,
        instances=len(tracks),
        report=whole,
        queueing_s=percentiles(waited if waited >= 0 else inf for waited in outcome.queued_s),
        utilisation=sum(last_value(track.step_busy_s) for track in tracks) / (len(tracks) * whole.span_s or 1.0),
        memory_mean=sum(means) / (len(means) or 1),
        memory_max=max((max(shares, default=0.0) for shares in used), default=0.0),
        preemptions=sum(int(last_value(track.preemptions_total)) for track in tracks),
        migrations=sum(int(last_value(track.migrations_total)) for track in tracks),
        moved_bytes=sum(int(last_value(track.moved_bytes_total)) for track in tracks),
        cached_share=_cached(records, tracks),
        wall_s=outcome.wall_s,
        classes=_classes(records, met_it),
        slowest=tuple(record.request for record in slowest(records)[:3]),
        overhead=outcome.overhead,
        links=outcome.links,
    )


def _cached(records: Sequence[RequestRecord], tracks: Sequence[InstanceTrack]) -> float:
    asked = sum(record.input_tokens for record in records)
    return sum(last_value(track.prefix_hit_tokens_total) for track in tracks) / (asked or 1)


def _classes(records: Sequence[RequestRecord], met_it: Sequence[bool] | None) -> dict[str, RunReport]:
    labels = sorted({record.label for record in records})
    if len(labels) < 2:
        return {}
    found = {}
    for label in labels:
        rows = [index for index, record in enumerate(records) if record.label == label]
        mine = None if met_it is None else [met_it[row] for row in rows]
        found[label] = summarize([records[row] for row in rows], mine)
    return found


def slowest(records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """The requests that got a token, by time to the first one, longest first."""
    answered = [record for record in records if record.token_s]
    return sorted(answered, key=lambda record: record.at_s - record.token_s[0])
