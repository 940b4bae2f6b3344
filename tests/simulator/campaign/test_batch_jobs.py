"""Batch jobs of campaigns: dispatchers claim them, die and sleep, and each line has its result once."""

import json

from services.dispatcher.batches.line_window import Segment
from services.dispatcher.batches.records import TokenCounts
from simulator.campaign.batch_jobs import LEASE_S, CampaignJobs
from simulator.campaign.batch_results import CampaignJob
from simulator.campaign.job_plans import MOST_LINES, with_batch_jobs
from simulator.campaign.plans import PlannedJob
from simulator.campaign.runner import plan_of
from simulator.engine.token_model import continuation
from tests.simulator.campaign.campaign_bench import Campaign, planned

LINES = tuple(planned(number=1000 + index, tokens=(index, 2), max_tokens=20, is_batch=True) for index in range(10))


def begun(dispatchers: int = 2) -> tuple[Campaign, CampaignJob]:
    """A job of ten lines, two in flight and two in a segment, whose first segment is committed."""
    campaign = Campaign(dispatchers=dispatchers)
    CampaignJobs(campaign.cluster, campaign.clients).begin(PlannedJob(0, 0.0, LINES, 2, 2))
    (job,) = campaign.clients.jobs
    assert campaign.world.run(lambda: job.record.lines_read >= 2, for_s=20.0)
    return campaign, job


def answers(job: CampaignJob) -> list[tuple[str, list[int]]]:
    found = map(json.loads, job.output)
    return [(line["custom_id"], line["response"]["tokens"]) for line in found]


EXPECTED = [(f"line {line.number}", continuation(line.tokens, line.max_tokens, line.number)) for line in LINES]


def end(campaign: Campaign, job: CampaignJob) -> None:
    assert campaign.world.run(campaign.clients.all_done, for_s=100.0)
    assert (job.record.status, job.record.completed, job.holder) == ("completed", len(LINES), None)
    assert (answers(job), job.errors) == (EXPECTED, [])


def test_an_undisturbed_job_has_every_answer_in_the_order_of_its_input() -> None:
    campaign, job = begun()
    end(campaign, job)
    assert (job.fence, len(campaign.clients.all)) == (1, len(LINES))


def test_a_dead_dispatchers_job_goes_on_behind_the_last_commit_once_its_lease_is_over() -> None:
    campaign, job = begun()
    died_s, read, first = campaign.world.now_s, job.record.lines_read, job.holder
    assert first is not None
    campaign.cluster.kill(first)
    assert campaign.world.run(lambda: job.fence == 2, for_s=10.0)
    assert LEASE_S - 0.5 <= campaign.world.now_s - died_s <= LEASE_S + 0.5
    assert (job.record.lines_read, job.holder) == (read, campaign.address("dispatcher"))
    end(campaign, job)
    assert len(campaign.clients.all) > len(LINES)


def test_a_dispatcher_that_slept_through_its_lease_commits_nothing_and_stops_its_lines() -> None:
    campaign, job = begun()
    assert job.holder is not None
    sleeper = job.holder
    campaign.cluster.pause(sleeper)
    assert campaign.world.run(lambda: job.fence == 2 and job.record.lines_read >= 6, for_s=20.0)
    campaign.world.resume(sleeper)
    end(campaign, job)
    campaign.run(5.0)
    assert len(job.output) == len(LINES)


def test_a_commit_counts_under_the_claim_that_stands_alone() -> None:
    _, job = begun()
    assert job.holder is not None
    before = job.record
    segment = Segment(1, before.lines_read + 1, before.lines_read + 1, b"{}\n", b"", 1, 0, TokenCounts())
    assert not job.commit(job.fence - 1, segment, 0.0)
    assert job.record == before


def test_without_an_etcd_nothing_is_committed_or_claimed() -> None:
    campaign, job = begun()
    campaign.cluster.etcd.begin_outage(8.0)
    before = job.record
    campaign.run(7.9)
    assert job.record == before
    end(campaign, job)
    assert job.fence == 1


def test_jobs_are_drawn_beside_what_a_seed_means() -> None:
    jobs: list[PlannedJob] = []
    for plan in map(plan_of, range(40)):
        part = with_batch_jobs(plan)
        assert part == with_batch_jobs(plan)
        assert (part.shape, part.requests, part.faults) == (plan.shape, plan.requests, plan.faults)
        assert bool(part.jobs) == (plan.shape.preset != "online_only")
        jobs += part.jobs
        numbers = [line.number for job in part.jobs for line in job.lines] + [ask.number for ask in part.requests]
        assert len(set(numbers)) == len(numbers)
    assert all(line.is_batch for job in jobs for line in job.lines)
    assert max(len(job.lines) for job in jobs) == MOST_LINES
