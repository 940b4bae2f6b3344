"""What happened to the requests of a run, as counts: preemptions, prefix hits, moves and recomputed tokens, live from
the reports that a record holds, simulated from the samples. Both are the instances' own counters.
"""

from collections.abc import Mapping
from typing import Any

from simulator.study.recorded_cluster import RunError
from simulator.study.samples import InstanceTrack

COUNTERS = {
    "preemptions": "preemptions_total",
    "hit tokens": "prefix_hit_tokens_total",
    "moves": "migrations_total",
    "recomputed tokens": "recomputed_tokens_total",
}
"""Name of a count to the instances' counter: `InstanceReport`."""


def simulated_counts(tracks: Mapping[str, InstanceTrack]) -> dict[str, int]:
    """The counts of all instances from their first sample to their last one."""
    columns = {name: [getattr(track, counter) for track in tracks.values()] for name, counter in COUNTERS.items()}
    return {name: sum(int(each[-1] - each[0]) for each in tracked if each) for name, tracked in columns.items()}


def recorded_counts(began: Mapping[str, Any], ended: Mapping[str, Any]) -> dict[str, int]:
    """The counts between two statuses of a live cluster (`before` and `after` of a record). Raises RunError: an
    instance that began did not report at the end, or was started anew meanwhile.
    """
    first, last = _reports(began), _reports(ended)
    if first.keys() != last.keys():
        raise RunError(f"the record began with the processes {sorted(first)} and ended with {sorted(last)}")
    return {
        name: sum(int(last[one].get(counter, 0)) - int(first[one].get(counter, 0)) for one in first)
        for name, counter in COUNTERS.items()
    }


def _reports(status: Mapping[str, Any]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """The report of each instance, by its name and incarnation."""
    return {
        (member["address"]["name"], member["address"]["incarnation"]): member.get("instance") or {}
        for member in status.get("members", ())
        if member["address"]["role"] == "instance"
    }
