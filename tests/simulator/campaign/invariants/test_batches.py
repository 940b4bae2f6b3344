"""I10: a line that is missing, doubled or not whole is noticed, while a job runs and in the end."""

import json

import pytest

from services.dispatcher.batches.line_window import Segment
from services.dispatcher.batches.records import JobRecord, TokenCounts
from simulator.campaign.batch_results import CampaignJob
from simulator.campaign.invariants.batches import BatchResultsWatcher
from simulator.campaign.plans import PlannedJob
from simulator.campaign.violation import Violation
from tests.simulator.campaign.campaign_bench import Campaign, planned

LINES = tuple(planned(number=number, is_batch=True) for number in (7, 8, 9))


def text(number: int) -> bytes:
    return json.dumps({"custom_id": f"line {number}", "response": {}}).encode() + b"\n"


def watched(*committed: bytes, lines_read: int | None = None) -> tuple[BatchResultsWatcher, CampaignJob]:
    """A watcher of a job whose first lines are committed with these results."""
    campaign = Campaign()
    record = JobRecord("batch_0", "", "/v1/completions", "file", 0.0, 60.0).validated(len(LINES), 0, (), 0.0)
    job = CampaignJob(PlannedJob(0, 0.0, LINES, 1, 1), record, campaign.address("dispatcher"), fence=1)
    count = len(committed) if lines_read is None else lines_read
    segment = Segment(len(committed), count, count, b"".join(committed), b"", len(committed), 0, TokenCounts())
    assert job.commit(1, segment, 1.0)
    campaign.clients.jobs.append(job)
    return BatchResultsWatcher(campaign.cluster, campaign.clients, campaign.faults), job


def test_the_first_lines_once_each_are_right_until_the_end() -> None:
    watcher, job = watched(text(7), text(8))
    watcher.audit()
    with pytest.raises(Violation, match=r"I10 .*'line 9' has no result line"):
        watcher.at_end()
    job.output.append(text(9))
    job.record = Segment(1, 3, 3, b"", b"", 1, 0, TokenCounts()).advance(job.record)
    watcher.at_end()


@pytest.mark.parametrize(
    ("committed", "lines_read", "complaint"),
    [
        ((text(7), text(7)), 2, "'line 7' has 2 result lines"),
        ((text(7), text(8)), 1, "1 input lines, 2 result lines"),
        ((text(7), text(9)), 2, "'line 9' is no custom_id"),
        ((text(7)[:-3] + b"\n",), 1, "output line 1 is not whole"),
    ],
)
def test_anything_else_is_a_violation(committed: tuple[bytes, ...], lines_read: int, complaint: str) -> None:
    watcher, _ = watched(*committed, lines_read=lines_read)
    with pytest.raises(Violation, match=complaint):
        watcher.audit()


def test_a_record_that_counts_wrong_is_one_too() -> None:
    watcher, job = watched(text(7))
    job.output.clear()
    job.output += [text(7)]
    job.record = Segment(0, 1, 1, b"", b"", 1, 0, TokenCounts()).advance(job.record)
    with pytest.raises(Violation, match="its record says 2 answered and 0 failed"):
        watcher.audit()
