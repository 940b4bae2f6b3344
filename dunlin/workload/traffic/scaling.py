"""Changes arrivals before they are sent: cuts, stretches, thins or repeats them to a rate, overlays several traces.

Pure: from lists to lists, by a seed. Whatever is changed, the order of arrival stays.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from dunlin.workload.traffic.trace import Arrival

_SPACE = 1 << 40
"""Prefix ids of one trace lie below it: what is laid over it gets ids of its own."""


def cut_window(arrivals: Sequence[Arrival], start_s: float, stop_s: float) -> list[Arrival]:
    """The arrivals in [`start_s`, `stop_s`), with times counted from `start_s`."""
    return [replace(one, at_s=one.at_s - start_s) for one in arrivals if start_s <= one.at_s < stop_s]


def stretch_time(arrivals: Sequence[Arrival], factor: float) -> list[Arrival]:
    """Every time multiplied by `factor`: 2 makes a trace twice as long at half the rate, with the same pattern."""
    return list(arrivals) if factor == 1 else [replace(one, at_s=one.at_s * factor) for one in arrivals]


def resample_to_rate(
    arrivals: Sequence[Arrival], rate: float, duration_s: float, seed: int, jitter_s: float = 1.0
) -> list[Arrival]:
    """`rate` × `duration_s` requests drawn from `arrivals` at the times they have, so that the pattern in time stays.

    Fewer than there are: a sample without replacement. More: each is repeated as often as it takes (the last time only
    a sample of them), the copies up to `jitter_s` later and with prefixes of their own, which they share among
    themselves as the originals do.
    """
    if not arrivals:
        return []
    random = Random(seed)
    copies, rest = divmod(round(rate * duration_s), len(arrivals))
    made = [(one, index) for index in range(copies) for one in arrivals]
    made += [(arrivals[row], copies) for row in sorted(random.sample(range(len(arrivals)), rest))]
    return sort_by_time(_copy(one, index, random.random() * jitter_s, duration_s) for one, index in made)


def _copy(arrival: Arrival, index: int, later_s: float, duration_s: float) -> Arrival:
    if index == 0:
        return arrival
    at_s = arrival.at_s + later_s
    # What would fall off the end comes earlier instead: the number of requests is what was asked for.
    return replace(
        with_prefix_space(arrival, index), at_s=at_s if at_s < duration_s else max(0.0, arrival.at_s - later_s)
    )


def with_prefix_space(arrival: Arrival, space: int) -> Arrival:
    """The same request with prefix ids that no other space has."""
    if not arrival.blocks or not space:
        return arrival
    return replace(arrival, blocks=tuple(block + space * _SPACE for block in arrival.blocks))


def overlay(parts: Sequence[Sequence[Arrival]]) -> list[Arrival]:
    """All parts merged by time. No part shares prefixes with another."""
    # Copies of a part count spaces from 1 on: parts are farther apart than the copies of any part.
    return sort_by_time(with_prefix_space(one, index << 20) for index, part in enumerate(parts) for one in part)


def sort_by_time(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Sorted by time; equal times keep their order."""
    return sorted(arrivals, key=lambda one: one.at_s)
