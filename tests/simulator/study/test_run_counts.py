"""Counts of a run: from a record's two statuses, and from samples."""

from array import array
from typing import Any

import pytest

from simulator.study.recorded_cluster import RunError
from simulator.study.run_counts import recorded_counts, simulated_counts
from simulator.study.samples import InstanceTrack
from tests.simulator.study.recorded_facts import member

NONE = {"preemptions": 0, "hit tokens": 0, "moves": 0, "recomputed tokens": 0}


def status(*instances: dict[str, Any]) -> dict[str, Any]:
    """A status of so many instances with these reports, and of a dispatcher."""
    named = [member("instance", f"instance-{place}", instance=report) for place, report in enumerate(instances)]
    return {"members": [*named, member("dispatcher", "dispatcher-0", dispatcher={"preemptions_total": 99})]}


def test_counts_are_what_all_instances_counted_meanwhile() -> None:
    began = status({"preemptions_total": 3, "migrations_total": 1}, {"preemptions_total": 10})
    ended = status({"preemptions_total": 5, "migrations_total": 1}, {"preemptions_total": 11, "migrations_total": 4})
    assert recorded_counts(began, ended) == NONE | {"preemptions": 3, "moves": 4}


def test_an_instance_that_was_started_anew_cannot_be_counted() -> None:
    ended = status({}, {})
    ended["members"][1]["address"]["incarnation"] = 2
    with pytest.raises(RunError, match="began with"):
        recorded_counts(status({}, {}), ended)


def test_samples_count_from_the_first_to_the_last() -> None:
    one, other = (InstanceTrack(recomputed_tokens_total=array("q", column)) for column in ((5, 6, 9), (0, 2)))
    found = simulated_counts({"a": one, "b": other, "none": InstanceTrack()})
    assert found == NONE | {"recomputed tokens": 6}
