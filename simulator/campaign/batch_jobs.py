"""The batch jobs of a campaign: dispatchers work on them, one at a time by its claim, and their lines are requests.

How far a job is, the services' own code decides (`LineWindow`, `Segment`, `JobRecord`); its claims in etcd and the
store of its results are modelled (`batch_results.py`). Knows no invariant.
"""

import json
from functools import partial

from dunlin.effects import Address
from dunlin.messages.types import FinishReason
from services.dispatcher.batches.line_window import LineResult, LineWindow, Segment, WindowLimits
from services.dispatcher.batches.records import JobRecord, TokenCounts
from simulator.campaign.batch_results import CampaignJob, custom_id
from simulator.campaign.clients import CampaignClients, LineClient
from simulator.campaign.plans import PlannedJob
from simulator.cluster.simulated import SimulatedCluster

CLAIM_S = 0.5
"""Seconds between two looks at a job's claim, and between two tries of a commit that etcd cannot take."""
LEASE_S = 3.0
"""Seconds for which a claim outlives its dispatcher's last sign of life."""
COMMIT_S = 0.05
"""Seconds that it takes to write a segment and to commit it."""
MOST_TRIES = 3
"""Errors of a line's request after which the error is its result (dispatcher.batches.max_line_attempts)."""


class CampaignJobs:
    """Creates the jobs of a trial, and lets dispatchers claim them."""

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients) -> None:
        self._cluster = cluster
        self._clients = clients

    def begin(self, planned: PlannedJob) -> None:
        """A client creates the job."""
        now_s, tenant = self._cluster.world.now_s, planned.lines[0].tenant
        created = JobRecord(f"batch_{planned.number}", tenant, "/v1/completions", "file", now_s, 86_400.0)
        job = CampaignJob(planned, created.validated(len(planned.lines), 0, (), now_s))
        self._clients.jobs.append(job)
        self._look(job)

    def _look(self, job: CampaignJob) -> None:
        """Keep the claim as long as its dispatcher lives, and let another claim the job when it is over."""
        if not job.record.is_open:
            return
        world, now_s = self._cluster.world, self._cluster.world.now_s
        if not self._cluster.etcd.is_down:
            if job.holder is not None and self._works(job.holder):
                job.alive_s = now_s
            elif job.holder is not None and now_s >= job.alive_s + LEASE_S:
                job.holder = None
            if job.holder is None:
                self._claim(job)
        world.call_later(CLAIM_S, partial(self._look, job))

    def _claim(self, job: CampaignJob) -> None:
        able = [door for door in self._cluster.doors() if self._works(door)]
        if not able:
            return
        job.holder, job.fence = able[(job.planned.number + job.fence) % len(able)], job.fence + 1
        job.alive_s = self._cluster.world.now_s
        JobWork(self._cluster, self._clients, job).go_on()

    def _works(self, door: Address) -> bool:
        return door in self._cluster.cores and not self._cluster.world.is_paused(door)


class JobWork:
    """A dispatcher's work on a job under one claim, until the job or the claim is over, or the process dies."""

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, job: CampaignJob) -> None:
        assert job.holder is not None
        self._cluster = cluster
        self._clients = clients
        self._job = job
        self._door = job.holder
        self._fence = job.fence
        planned = job.planned
        self._segment_lines = planned.segment_lines
        limits = WindowLimits(planned.lines_in_flight, 2 * planned.lines_in_flight, 1 << 20, planned.segment_lines)
        self._window = LineWindow(limits)
        self._started = job.record.lines_read
        self._open: dict[int, LineClient] = {}
        self._is_over = self._is_committing = False

    def go_on(self) -> None:
        """Start the lines for which there is room, and commit what is worth it."""
        if self._is_over:
            return
        while self._started < len(self._job.planned.lines) and self._window.can_start:
            self._started += 1
            self._window.start(self._started, stop=self._started)
            self._ask(self._started, tries=1)
        if not self._is_committing and self._is_due():
            segment = self._window.next_segment()
            assert segment is not None
            self._is_committing = True
            self._cluster.world.call_later(COMMIT_S, partial(self._commit, segment))

    def _is_due(self) -> bool:
        ready, window = self._window.ready, self._window
        is_last = self._started == len(self._job.planned.lines) and not window.running
        return ready > 0 and (is_last or window.is_full or ready >= self._segment_lines)

    def _ask(self, number: int, tries: int) -> None:
        line = self._job.planned.lines[number - 1]
        client = self._clients.line(line, self._door, partial(self._on_end, number, tries))
        self._open[number] = client
        client.connect()

    def _on_end(self, number: int, tries: int, client: LineClient) -> None:
        """A line's request ended; if its dispatcher died, so did this work."""
        if self._is_over or client.disconnected:
            return
        is_whole = client.finish is FinishReason.LENGTH
        if not is_whole and tries < MOST_TRIES and client.rejected is None:
            return self._ask(number, tries + 1)
        del self._open[number]
        self._window.finish(number, _result(client, is_whole))
        return self.go_on()

    def _commit(self, segment: Segment) -> None:
        world = self._cluster.world
        if self._door not in self._cluster.cores:
            return None
        if world.is_paused(self._door) or self._cluster.etcd.is_down:
            return world.call_later(CLAIM_S, partial(self._commit, segment))
        if not self._job.commit(self._fence, segment, world.now_s):
            return self._lose()
        self._window.commit(segment)
        self._is_committing = False
        return self.go_on()

    def _lose(self) -> None:
        """Another dispatcher may work on the job: stop the lines."""
        self._is_over = True
        for client in self._open.values():
            client.disconnect()


def _result(client: LineClient, is_whole: bool) -> LineResult:
    line = {"custom_id": custom_id(client.planned.number), "response": {"tokens": client.tokens}}
    text = json.dumps(line).encode() + b"\n"
    return LineResult(text, not is_whole, TokenCounts(len(client.planned.tokens), 0, len(client.tokens)))
