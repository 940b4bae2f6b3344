"""Statistics of the samples of instances: shares, intervals of a role, rises of counters. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from simulator.study.samples import InstanceTrack


@dataclass(frozen=True, slots=True)
class RoleInterval:
    """An instance had the same role in the same group from `start_s` to `stop_s`."""

    start_s: float
    stop_s: float
    group: int
    part: int


def role_intervals(track: InstanceTrack) -> list[RoleInterval]:
    """The roles of an instance, by time."""
    found: list[RoleInterval] = []
    for index, at_s in enumerate(track.at_s):
        key = track.group[index], track.part[index]
        stop_s = track.at_s[index + 1] if index + 1 < len(track.at_s) else at_s
        if found and (found[-1].group, found[-1].part) == key:
            found[-1] = RoleInterval(found[-1].start_s, stop_s, *key)
        else:
            found.append(RoleInterval(at_s, stop_s, *key))
    return found


def counter_rises(track: InstanceTrack, column: Sequence[int]) -> list[float]:
    """Times of the samples before which a counter rose."""
    return [at_s for (before, after), at_s in zip(pairwise(column), track.at_s[1:], strict=True) if after > before]


def last_value(column: Sequence[float]) -> float:
    """The last value of a counter; 0 without samples."""
    return column[-1] if column else 0.0


def kv_usage(track: InstanceTrack) -> list[float]:
    """Shares (0 to 1) of an instance's slots in use; prefix cache counts as free, because it can be evicted."""
    columns = zip(track.used_slots, track.cached_slots, track.capacity_slots, strict=True)
    return [(used - cached) / capacity if capacity else 0.0 for used, cached, capacity in columns]


def full_height(shares: Sequence[float]) -> float:
    """The share that a plot draws at full height, so that nearly empty instances are visible."""
    highest = max(shares, default=1.0)
    return next((full for full in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if full >= highest), 1.0)


def column_sums(columns: Iterable[Sequence[float]]) -> list[float]:
    """Sums of the columns row by row, up to the shortest column's end."""
    return [sum(values) for values in zip(*columns, strict=False)]


def mean_over_time(at_s: Sequence[float], values: Sequence[float], stop_s: float) -> float:
    """The mean over time of samples, each valid until the next one, up to `stop_s`."""
    area = span_s = 0.0
    for index, (start_s, value) in enumerate(zip(at_s, values, strict=True)):
        end_s = min(stop_s, at_s[index + 1] if index + 1 < len(at_s) else stop_s)
        if end_s > start_s:
            area += value * (end_s - start_s)
            span_s += end_s - start_s
    return area / span_s if span_s else 0.0
