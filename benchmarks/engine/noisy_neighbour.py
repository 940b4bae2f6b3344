"""What an engine of several threads does beside other busy processes, and right after it is ready.

    python -m benchmarks.engine.noisy_neighbour --model A --threads 2

Tokens per second of one stream and of sixteen: in the first 25 s, while the next engine is prepared to stand by, then
alone and beside one and two processes that each keep a core busy, in turns. To compare with another checkout, run this
file with `PYTHONPATH` naming that one. On two cores what is measured needs the machine for itself.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from benchmarks.harness import report
from benchmarks.harness.model_shapes import SHAPES
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from cli.launch.cluster_process import ClusterProcess
from dunlin.engine.decoder.loading.random_checkpoint import write_random_checkpoint
from dunlin.messages.types import i32
from dunlin.workload.loadgen.load_generator import LoadGenerator, StreamedTokens
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.prompts import Job

FIRST_S = 25.0
"""So long after the ready line the next engine is being prepared, or may be."""


@dataclass(frozen=True, slots=True)
class NoisyNeighbourPlan:
    """`neighbours` busy processes in each part of a round, `batches` streams; each part is measured for `window_s`."""

    model: str = "A"
    instances: int = 1
    threads: int = 2
    batches: tuple[int, ...] = (1, 16)
    neighbours: tuple[int, ...] = (0, 1, 2)
    rounds: int = 3
    window_s: float = 4.0
    first_s: float = FIRST_S


class BusyProcesses:
    """Owns processes that keep a core busy each, while they are let. Each in a session of its own, as strangers are."""

    def __init__(self, most: int) -> None:
        command = [sys.executable, "-c", "while True: pass"]
        self._processes = [subprocess.Popen(command, start_new_session=True) for _ in range(most)]
        self.run_some(0)

    def run_some(self, count: int) -> None:
        """`count` of them run."""
        for index, process in enumerate(self._processes):
            os.kill(process.pid, signal.SIGCONT if index < count else signal.SIGSTOP)

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.kill()
            process.wait()


@dataclass(slots=True)
class EndlessStreams:
    """So many endless streams, one after another at each place. Owns the load; counts its tokens."""

    session: CampaignSession
    count: int
    tokens: int = 0
    _task: "asyncio.Task[None] | None" = None
    _draw: random.Random = field(default_factory=lambda: random.Random(1))

    async def __aenter__(self) -> "EndlessStreams":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def rate(self, seconds: float) -> float:
        """Tokens per second from now on. Raises what went wrong with a stream."""
        began_s, before = time.perf_counter(), self.tokens
        await asyncio.sleep(seconds)
        if self._task is not None and self._task.done():
            self._task.result()
        return (self.tokens - before) / (time.perf_counter() - began_s)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.count):
                tasks.create_task(self._place())

    async def _place(self) -> None:
        while True:
            job = Job(0.0, i32(self._draw.choices(range(self.session.vocabulary), k=16)), 400)
            (record,) = await LoadGenerator([job], self.session.door, self._note).run()
            if record.outcome != "ok":
                raise RuntimeError(f"a stream ended: {record.outcome}: {record.detail}")

    def _note(self, record: RequestRecord, arrived: StreamedTokens | None) -> None:
        self.tokens += len(arrived.tokens) if arrived is not None else 0


async def run(plan: NoisyNeighbourPlan, cluster: ClusterProcess) -> BenchmarkResult:
    """The measurement against a cluster that became ready just now."""
    shape = f"{plan.instances} instances × {plan.threads} threads, model {plan.model}, bf16"
    outcome = BenchmarkResult(f"neighbours: {shape}, tokens/s")
    neighbours = BusyProcesses(max(plan.neighbours))
    rates: dict[tuple[int, int], list[float]] = {}
    try:
        async with CampaignSession(cluster) as session:
            async with EndlessStreams(session, plan.batches[0]) as streams:
                first = await streams.rate(plan.first_s) if plan.first_s else 0.0
            for turn in range(plan.rounds):
                for batch in plan.batches:
                    async with EndlessStreams(session, batch) as streams:
                        await _round(plan, batch, streams, neighbours, rates)
                say(f"round {turn + 1} of {plan.rounds}")
    finally:
        neighbours.close()
    _conclude(plan, outcome, first, {key: median(found) for key, found in rates.items()})
    return outcome


async def _round(
    plan: NoisyNeighbourPlan,
    batch: int,
    streams: EndlessStreams,
    neighbours: BusyProcesses,
    rates: dict[tuple[int, int], list[float]],
) -> None:
    for count in plan.neighbours:
        neighbours.run_some(count)
        await asyncio.sleep(1.5)  # the prompts, or what was there before
        rates.setdefault((batch, count), []).append(await streams.rate(plan.window_s))
        neighbours.run_some(0)


def _conclude(
    plan: NoisyNeighbourPlan, outcome: BenchmarkResult, first: float, rates: dict[tuple[int, int], float]
) -> None:
    for (batch, count), rate in rates.items():
        name = f"{batch} streams, {count} busy processes"
        outcome.figures[name] = rate
        alone = rates[batch, 0]
        if count:
            outcome.figures[f"{name} / alone"] = rate / alone
        if count == 1:
            outcome.expect(rate >= 0.4 * alone, f"{name}: {rate / alone:.2f} of what it does alone, not 0.4")
    if plan.first_s:
        rested = rates[plan.batches[0], 0]
        outcome.figures |= {f"first {plan.first_s:g} s": first, f"first {plan.first_s:g} s / alone": first / rested}
        outcome.expect(first >= 0.8 * rested, f"the first {plan.first_s:g} s: {first / rested:.2f} of later, not 0.8")


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.set_defaults(instances=1)
    usual = NoisyNeighbourPlan()
    arguments.add_argument("--model", choices=list(SHAPES), default=usual.model)
    arguments.add_argument("--threads", type=int, default=usual.threads)
    arguments.add_argument("--rounds", type=int, default=usual.rounds)
    arguments.add_argument("--batches", type=int, nargs="+", default=list(usual.batches), metavar="N")
    arguments.add_argument("--neighbours", type=int, nargs="+", default=list(usual.neighbours), metavar="N")
    arguments.add_argument("--first", type=float, default=usual.first_s, metavar="S", help="0: not measured")
    given = arguments.parse_args(argv)
    plan = NoisyNeighbourPlan(given.model, given.instances, given.threads, rounds=given.rounds, first_s=given.first)
    plan = replace(plan, batches=tuple(given.batches), neighbours=tuple(given.neighbours))
    with tempfile.TemporaryDirectory() as folder:
        write_random_checkpoint(Path(folder) / "model", shape=SHAPES[plan.model])
        flags = ("--model", str(Path(folder) / "model"), "--dtype", "bf16")
        with ClusterProcess(*flags, "--instances", str(plan.instances), "--threads", str(plan.threads)) as cluster:
            outcome = asyncio.run(run(plan, cluster))
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
