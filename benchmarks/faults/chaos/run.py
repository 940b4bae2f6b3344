"""One live run: undisturbed texts, rounds of faults beside clients and jobs, checks of all that was recorded."""

import asyncio
import math
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.chaos.at_rest import leaked, open_files, tracebacks, unsettled
from benchmarks.faults.chaos.attempts import attempt_complaints
from benchmarks.faults.chaos.clients import ChaosClients
from benchmarks.faults.chaos.cluster import LiveCluster, is_running
from benchmarks.faults.chaos.injector import LiveFaultInjector
from benchmarks.faults.chaos.jobs import ChaosJobs
from benchmarks.faults.chaos.rounds import (
    PROMPT_SCALE,
    ROUND_S,
    LiveRequest,
    LiveRound,
    RoundPlanner,
    live_plan,
)
from benchmarks.faults.chaos.streams import RecordedStream, StreamEnd, stream_complaints
from benchmarks.faults.chaos.terms import RecordedTerms
from benchmarks.harness.decisions import dispatched_attempts
from benchmarks.harness.fleet_status import unbalanced
from benchmarks.harness.report import say
from cli.commands.requests.explain import decode_records
from dunlin.client import DunlinError
from dunlin.membership.client import EtcdClient
from dunlin.membership.watch import PrefixWatch
from dunlin.messages.fleet import FleetStatus
from dunlin.telemetry.explain import explain
from dunlin.wire.codec import decode
from services.global_manager.server import ELECTION_PREFIX

READY_S, REST_S, JOBS_S = 240.0, 150.0, 240.0
TICK_S, LOOK_S = 0.1, 1.0
REFERENCE_WIDTH = 6


@dataclass(frozen=True, slots=True)
class LiveChaosPlan:
    """A run: `minutes` of rounds from `seed` on, at most `sets` sets of requests, each sent `waves` times a round, to
    `per_node` instances on each node: where there are several, they form groups for prompts too long for one.
    """

    minutes: float = 3.0
    seed: int = 1
    preset: str = "unified"
    sets: int = 3
    waves: int = 1
    per_node: int = 1

    def words(self, store: Path) -> list[str]:
        """Settings of the services: what the first plan's shape says of them, and `store` for batch files."""
        shape = live_plan(self.seed, self.preset, self.per_node).shape
        of_groups = {
            "instance.groups.chunk_tokens": shape.group_chunk_tokens,
            "dispatcher.placement.long_tokens": shape.long_tokens,
        }
        return [
            *(f"{name}={tokens * PROMPT_SCALE}" for name, tokens in of_groups.items() if tokens),
            f"cluster.preset={self.preset}",
            "instance.engine.deterministic=true",
            "instance.engine.threads=1",
            f"instance.kv_cache.max_slots={shape.slots * PROMPT_SCALE}",
            f"instance.kv_cache.prefix_caching={str(shape.prefix_reuse).lower()}",
            f"kvstore.exchange.replicate={str(shape.replicate).lower()}",
            f"dispatcher.batches.store_url={store}",
            "dispatcher.batches.lease_ttl_s=3",
        ]


class LiveChaosRun:
    """One run on a started cluster. `violations` grows as things are seen."""

    def __init__(self, plan: LiveChaosPlan, cluster: LiveCluster, etcd: EtcdClient, folder: Path) -> None:
        self.violations: list[str] = []
        self.terms = RecordedTerms()
        self.clients = ChaosClients(cluster.doors, cluster.monitor, self._on_end)
        self.looks = self.looked_back = self.dispatched_again = 0
        self._plan = plan
        self._cluster = cluster
        self._etcd = etcd
        self._folder = folder
        self._expected: list[list[int]] = []
        self._told: set[asyncio.Task[None]] = set()
        self.injector = LiveFaultInjector(cluster, self.clients.clients[0], etcd, self.clients.now_s)
        self.rounds: RoundPlanner
        self.jobs: ChaosJobs | None = None

    async def run(self) -> None:
        """All of it: undisturbed texts, rounds, rest."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.clients)
            stack.push_async_callback(self.injector.close)
            for beside in (self._keep_running(), self._watch_terms(), self._look_for_ever()):
                stack.push_async_callback(_cancelled, asyncio.create_task(beside))
            await self._rest(READY_S, "the cluster is not ready")
            self.jobs = jobs = await self._prepare()
            before = open_files(self._pids())
            creating = asyncio.create_task(jobs.create_for_ever())
            stack.push_async_callback(_cancelled, creating)
            await self._play()
            await _cancelled(creating)
            await self._end(before, jobs)

    async def _prepare(self) -> ChaosJobs:
        """Have every text generated once, undisturbed; the jobs of the run."""
        info = await self.clients.clients[0].info()
        plan = self._plan
        sets = min(plan.sets, math.ceil(60.0 * plan.minutes / ROUND_S))
        self.rounds = RoundPlanner(plan.seed, plan.preset, info.vocabulary, sets, plan.waves, plan.per_node)
        streams = await self.clients.alone(self.rounds.texts, REFERENCE_WIDTH)
        self._expected = [stream.tokens for stream in streams]
        for stream in streams:
            if stream.end is not StreamEnd.FINISHED or len(stream.tokens) != stream.request.max_tokens:
                raise RuntimeError(f"the undisturbed run failed: {stream.name}: {stream.end.value} {stream.detail}")
        say(f"{len(streams)} texts of {sum(map(len, self._expected))} tokens were generated undisturbed")
        return ChaosJobs(self.clients.clients[-1], self._folder, info.vocabulary, plan.seed)

    async def _play(self) -> None:
        until_s = time.monotonic() + 60.0 * self._plan.minutes
        number = 0
        while time.monotonic() < until_s:
            planned = self.rounds.round(number)
            ended = sum(stream.end is not StreamEnd.OPEN for stream in self.clients.streams)
            say(
                f"round {number}: seed {planned.seed}, {len(planned.requests)} requests, {len(planned.faults)} faults; "
                f"{ended} of {len(self.clients.streams)} streams ended, {len(self.violations)} violations"
            )
            await self._round(planned)
            number += 1

    async def _round(self, planned: LiveRound) -> None:
        begin_s = time.monotonic()
        acts: list[tuple[float, object]] = [(one.at_s, one) for one in planned.requests]
        acts += [(fault.at_s, fault) for fault in planned.faults]
        for at_s, act in sorted(acts, key=lambda one: one[0]):
            await asyncio.sleep(max(0.0, begin_s + at_s - time.monotonic()))
            self.clients.send(act) if isinstance(act, LiveRequest) else self.injector.strike(act)  # type: ignore[arg-type]
        await asyncio.sleep(max(0.0, begin_s + ROUND_S - time.monotonic()))

    async def _end(self, before: dict[str, int], jobs: ChaosJobs) -> None:
        say("waiting for faults, streams and jobs to end")
        await self.injector.all_recovered()
        for process in self._cluster.of_role("instance"):
            await self.injector.operators.undo(process.spec.name)
        await self.clients.all_ended()
        self.violations += await jobs.check(JOBS_S)
        await self._rest(REST_S, "not at rest")
        self.violations += leaked(before, open_files(self._pids()))
        self.violations += self.terms.complaints()
        self.violations += self.injector.broken
        self.violations += [f"died by itself: {text}" for text in self._cluster.deaths]
        self.violations += [f"traceback: {text}" for text in tracebacks(self._cluster.logs())]
        await asyncio.gather(*self._told)

    async def _rest(self, limit_s: float, otherwise: str) -> None:
        deadline_s = time.monotonic() + limit_s
        roles = Counter(one.spec.role for one in self._cluster.processes)
        missing = ["no status"]
        while missing and time.monotonic() < deadline_s:
            await asyncio.sleep(LOOK_S)
            with suppress(DunlinError):
                missing = unsettled(await self._status(), roles)
        self.violations += [f"{text} ({otherwise} after {limit_s:g} s)" for text in missing]

    def _on_end(self, stream: RecordedStream) -> None:
        is_struck = bool(self.injector.struck)
        wrong = stream_complaints(stream, self._expected[stream.request.text], is_struck)
        self.violations += wrong
        for text in wrong:
            say(f"{self.clients.now_s():7.1f} s: VIOLATION {text}")
        if stream.public_id:
            task = asyncio.create_task(self._look_back(stream.public_id, bool(wrong)))
            self._told.add(task)
            task.add_done_callback(self._told.discard)

    async def _look_back(self, request: str, is_wrong: bool) -> None:
        """Read the recorded reasons of a request; print them where something is wrong."""
        with suppress(DunlinError):
            explanation = await self.clients.clients[0].explain(request)
            records = [(one, decode(one.kind, one.payload)) for one in explanation.reasons]
            wrong = attempt_complaints(records)
            self.violations += [f"{request}: {text}" for text in wrong]
            self.looked_back += 1
            self.dispatched_again += len(dispatched_attempts(records)) > 1
            if wrong or is_wrong:
                told = explain(decode_records(explanation), request)
                say("\n".join([*wrong, *(f"     | {line}" for line in told)]))

    async def _keep_running(self) -> None:
        while True:
            self._cluster.tick()
            await asyncio.sleep(TICK_S)

    async def _watch_terms(self) -> None:
        async for event in PrefixWatch(self._etcd, f"{ELECTION_PREFIX}/"):
            self.terms.on_event(event)

    async def _look_for_ever(self) -> None:
        while True:
            with suppress(DunlinError):
                status = await self._status()
                self.looks += 1
                self.terms.on_status(status)
                self.violations += [f"I8: {text}" for text in unbalanced(status)]
            await asyncio.sleep(LOOK_S)

    async def _status(self) -> FleetStatus:
        return await self.clients.clients[0].status()

    def _pids(self) -> dict[str, int]:
        there = [one for one in self._cluster.processes if is_running(one)]
        return {one.spec.name: self._cluster.pid_of(one) for one in there}


async def _cancelled(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for it; an error of its own is raised."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
