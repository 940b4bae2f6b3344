"""Dispatchers that claim a job, crash, sleep through their lease and wake, against etcd and a store of objects.

Whatever the order: each line has exactly one whole result line in the committed segments (I10).
"""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.dispatcher.batches.content_store import segment_object
from services.dispatcher.batches.input_lines import InputLine
from services.dispatcher.batches.job_store import Claim, ClaimLost, JobStore
from services.dispatcher.batches.line_window import LineResult, LineWindow, Segment, WindowLimits
from services.dispatcher.batches.records import JobRecord, JobStatus, TokenCounts
from services.dispatcher.batches.results_check import broken_results
from tests.fakes.memory_etcd import MemoryEtcd

R = TypeVar("R")
JOB = "batch_1"
WORKERS = 3
whiches = st.integers(0, 5)


@dataclass(eq=False)
class Worker:
    """A dispatcher's work on the job: it may not know that its lease is over."""

    claim: Claim
    lease: int
    window: LineWindow
    started: int
    written: Segment | None = None


class Takeovers(RuleBasedStateMachine):
    """`objects` is the store: what a crash leaves there unnamed does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.etcd = MemoryEtcd()
        self.store = JobStore(self.etcd, retry_s=0.0)
        self.workers: list[Worker] = []
        self.objects: dict[str, bytes] = {}
        self.lines: list[InputLine] = []

    def teardown(self) -> None:
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, R]) -> R:
        return self.loop.run_until_complete(work)

    @initialize(lines=st.integers(1, 12))
    def begin(self, lines: int) -> None:
        texts = [json.dumps({"custom_id": f"line {number}"}).encode() for number in range(1, lines + 1)]
        stop = 0
        for number, text in enumerate(texts, start=1):
            stop += len(text) + 1
            self.lines.append(InputLine(number, stop, text))
        job = JobRecord(JOB, "", "/v1/completions", "file-1", 0.0, 60.0).validated(lines, 0, (), 0.0)
        self.do(self.store.create(job))

    @precondition(lambda self: len(self.workers) < WORKERS)
    @rule(segment_lines=st.integers(1, 4))
    def claim(self, segment_lines: int) -> None:
        lease = self.do(self.etcd.grant(10)).lease_id
        claim = self.do(self.store.claim(JOB, lease, "a dispatcher"))
        if claim is not None:
            window = LineWindow(WindowLimits(3, 6, 1 << 20, segment_lines))
            self.workers.append(Worker(claim, lease, window, claim.job.lines_read))

    @precondition(lambda self: self.workers)
    @rule(which=whiches, starts=st.integers(1, 3), finishes=st.lists(st.tuples(whiches, st.booleans()), max_size=3))
    def work(self, which: int, starts: int, finishes: list[tuple[int, bool]]) -> None:
        at = self.worker(which)
        for _ in range(starts):
            if at.window.can_start and at.started < len(self.lines):
                self.start(at)
        for place, is_error in finishes:
            if running := at.window.running:
                self.finish(at, running[place % len(running)], is_error)

    def start(self, at: Worker) -> None:
        line = self.lines[at.started]
        at.window.start(line.number, line.stop)
        at.started += 1

    def finish(self, at: Worker, number: int, is_error: bool) -> None:
        line = {"custom_id": f"line {number}", "response": {}, "by": at.claim.fence}
        result = LineResult(json.dumps(line).encode() + b"\n", is_error, TokenCounts(1, 0, 2))
        assert at.window.finish(number, result)
        assert not at.window.finish(number, result)

    @precondition(lambda self: self.workers)
    @rule(which=whiches)
    def write(self, which: int) -> None:
        """The objects of the next segment are there; the commit comes later, or never."""
        self.write_segment(self.worker(which))

    def write_segment(self, at: Worker) -> Segment | None:
        at.written = at.written or at.window.next_segment()
        if at.written is not None:
            record = at.written.record(at.claim.job.segments, at.claim.fence)
            self.objects[segment_object(JOB, record, False)] = at.written.output
            self.objects[segment_object(JOB, record, True)] = at.written.errors
        return at.written

    @precondition(lambda self: self.workers)
    @rule(which=whiches, lost=st.booleans())
    def commit(self, which: int, lost: bool) -> None:
        at = self.worker(which)
        written = self.write_segment(at)
        if written is None:
            return
        self.etcd.lose_answers = int(lost)
        try:
            record = written.record(at.claim.job.segments, at.claim.fence)
            self.do(self.store.commit(at.claim, written.advance(at.claim.job), record))
        except ClaimLost:
            assert at.lease not in self.etcd.leases
            self.workers.remove(at)
            return
        assert at.lease in self.etcd.leases
        at.window.commit(written)
        at.written = None

    @precondition(lambda self: self.workers)
    @rule(which=whiches, commits=st.booleans())
    def lease_ends(self, which: int, commits: bool) -> None:
        """The dispatcher sleeps, or etcd does not reach it: it goes on as if nothing were."""
        at = self.worker(which)
        self.etcd.expire(at.lease)
        if commits:
            self.finish_some(at)
            self.commit(self.workers.index(at), False)

    @precondition(lambda self: 0 < len(self.workers) < WORKERS)
    @rule(which=whiches)
    def takeover(self, which: int) -> None:
        """Another one claims the job, gets a segment through, and the first one wakes and writes its own."""
        sleeper = self.worker(which)
        for at in self.workers:
            self.etcd.expire(at.lease)
        self.claim(2)
        other = self.workers[-1]
        for at in (sleeper, other):
            self.finish_some(at)
        self.commit(len(self.workers) - 1, False)
        self.write_segment(sleeper)

    @precondition(lambda self: self.workers)
    @rule(which=whiches)
    def crash(self, which: int) -> None:
        at = self.worker(which)
        self.workers.remove(at)
        self.etcd.expire(at.lease)

    def finish_some(self, at: Worker) -> None:
        if at.window.is_empty and at.started < len(self.lines):
            self.start(at)
        for number in at.window.running:
            self.finish(at, number, is_error=False)

    def worker(self, which: int) -> Worker:
        return self.workers[which % len(self.workers)]

    @invariant()
    def what_is_committed_is_a_prefix(self) -> None:
        if not self.lines:
            return
        job = self.job
        output, errors = self.results()
        assert broken_results((line.data or b"" for line in self.lines[: job.lines_read]), output, errors) == []
        assert (job.completed, job.failed) == (len(output), len(errors))
        assert (job.output_bytes, job.error_bytes) == (sum(map(len, output)), sum(map(len, errors)))
        assert job.offset == (self.lines[job.lines_read - 1].stop if job.lines_read else 0)
        assert job.tokens == TokenCounts(len(output), 0, 2 * len(output))

    @invariant()
    def the_window_is_bounded(self) -> None:
        for at in self.workers:
            assert len(at.window.running) <= 3
            assert at.started - at.claim.job.lines_read <= 6

    @property
    def job(self) -> JobRecord:
        view = self.do(self.store.get(JOB))
        assert view is not None
        assert view.job.status is JobStatus.IN_PROGRESS
        return view.job

    def results(self) -> tuple[list[bytes], list[bytes]]:
        segments = self.do(self.store.segments(JOB))
        assert [segment.number for segment in segments] == list(range(len(segments)))
        for one, is_error in ((one, is_error) for one in segments for is_error in (False, True)):
            lines = self.objects[segment_object(JOB, one, is_error)].splitlines()
            assert all(json.loads(line)["by"] == one.fence for line in lines), "a later write changed what is committed"
        return tuple(  # type: ignore[return-value]
            [line for one in segments for line in self.objects[segment_object(JOB, one, is_error)].splitlines(True)]
            for is_error in (False, True)
        )


TestTakeovers = Takeovers.TestCase
TestTakeovers.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
