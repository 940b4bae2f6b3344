"""What the host tier is worth and what it costs: `python -m benchmarks.kv.restore [--contexts 512,8192] [--rounds 5]`.

First one engine, in this process: KV restored from the host tier against the same KV computed again, in turns, up to
the first new token. Then two clusters of one instance, one that checkpoints and one that does not, in turns under the
same load.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import report
from benchmarks.harness.fleet_status import reports
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import VerifiedLoad, make_jobs
from cli.launch.cluster_process import ClusterProcess
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint
from dunlin.engine.execution.runner import EngineRunner
from dunlin.kv import prefix_hash
from dunlin.messages.engine import Close, MapHost, Open, Step, StepDone, Transfer, TransferDone
from dunlin.messages.types import HostRegion, Region, SamplingParams, TransferKind, TransferStatus, i8, i32, i64

TIMES_AT_LEAST = 5.0
COST_AT_MOST = 0.03
REGION_TOKENS = 1024
CHUNK_TOKENS = 512
SHAPE = CheckpointShape(8, 512, 8, 4, 64, 1408, 8192, 65536, dtype="bfloat16")
"""32 million parameters: 8 KiB of KV per token."""


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """`contexts` in tokens; `repeats` of each; `rounds` of `width` streams with and without checkpoints."""

    contexts: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768)
    repeats: int = 3
    rounds: int = 6
    width: int = 16
    prompt_tokens: int = 128
    output_tokens: int = 256


class RestoreBench:
    """One engine and a tier; owns the tier's file."""

    def __init__(self, loaded: LoadedModel, folder: Path) -> None:
        self._loaded = loaded
        self._bytes_per_token = loaded.config.layers * loaded.config.slot_bytes(2)
        self._numbers = 0
        self._runner = EngineRunner(loaded.decoder, loaded.slots, time.perf_counter)
        tier = folder / "tier"
        size = loaded.slots * self._bytes_per_token
        with tier.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        self._runner.receive(MapHost(str(tier), size, 1))

    def compute(self, tokens: list[int]) -> float:
        """Seconds from nothing to the first new token, in chunks."""
        began_s, sequence = time.perf_counter(), self._open(tokens)
        for start in range(0, len(tokens), CHUNK_TOKENS):
            self._step(sequence, start, min(start + CHUNK_TOKENS, len(tokens)), len(tokens))
        taken_s = time.perf_counter() - began_s
        self._runner.receive(Close(sequence))
        return taken_s

    def keep(self, tokens: list[int]) -> tuple[float, list[tuple[Region, HostRegion, bytes]]]:
        """Copy all but the last token out: seconds, and the regions."""
        began_s = time.perf_counter()
        kept = []
        for start in range(0, len(tokens) - 1, REGION_TOKENS):
            region = Region(0, self._loaded.config.layers, start, min(start + REGION_TOKENS, len(tokens) - 1))
            length = (region.stop - region.start) * self._bytes_per_token
            host = HostRegion(1, 1, start * self._bytes_per_token, length)
            chain = prefix_hash.chain_of(prefix_hash.chain_root("", "w"), tokens, region.stop)
            done = self._move(TransferKind.SLAB_TO_HOST, 0, region, host, chain)
            kept.append((region, HostRegion(1, 1, host.offset_bytes, length, done.checksum), chain))
        return time.perf_counter() - began_s, kept

    def restore(self, tokens: list[int], kept: list[tuple[Region, HostRegion, bytes]]) -> float:
        """Seconds from nothing to the first new token, with what is kept."""
        began_s, sequence = time.perf_counter(), self._open(tokens)
        for region, host, chain in kept:
            self._move(TransferKind.HOST_TO_SLAB, sequence, region, host, chain)
        self._step(sequence, len(tokens) - 1, len(tokens), len(tokens))
        taken_s = time.perf_counter() - began_s
        self._runner.receive(Close(sequence))
        return taken_s

    def _open(self, tokens: list[int]) -> int:
        self._numbers += 1
        assert not self._runner.receive(
            Open(self._numbers, i32(tokens), len(tokens), 8, SamplingParams(temperature=0.0))
        )
        return self._numbers

    def _step(self, sequence: int, start: int, stop: int, length: int) -> None:
        self._numbers += 1
        columns = (i64([sequence]), i64([start]), i64([stop]), i8([stop == length]))
        step = Step(self._numbers, *columns, i32([0]), i64([start]), i64([stop - start]))
        assert isinstance(self._run(step), StepDone)

    def _move(self, kind: TransferKind, sequence: int, region: Region, host: HostRegion, chain: bytes) -> TransferDone:
        self._numbers += 1
        extents = (i64([region.start]), i64([region.stop - region.start]))
        done = self._run(Transfer(self._numbers, kind, sequence, region, *extents, host, chain=chain))
        assert isinstance(done, TransferDone)
        assert done.status is TransferStatus.OK, done
        return done

    def _run(self, message: Step | Transfer) -> Any:
        events = self._runner.receive(message)
        while not events:
            events = self._runner.work(lambda: None)
        return events[0]


@torch.inference_mode()
def measure_restore(plan: RestorePlan, outcome: BenchmarkResult) -> None:
    """Restore against recompute, context by context."""
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        write_random_checkpoint(Path(folder) / "model", "llama", SHAPE)
        slots = max(plan.contexts) + 64
        kv_bytes = slots * SHAPE.layers * 2 * SHAPE.kv_heads * SHAPE.head_dim * 2 + (SHAPE.layers << 17)
        fd = os.memfd_create("dunlin-bench-arena")
        loaded = load_model(Path(folder) / "model", "bfloat16", kv_bytes, numerics.fast_numerics(), fd)
        bench = RestoreBench(loaded, Path(folder))
        for context in plan.contexts:
            rows.append(_compare(bench, context, plan.repeats))
            say("{tokens:6} tokens: computed {recompute_s:.3f} s, restored {restore_s:.4f} s".format(**rows[-1]))
    for row in rows:
        what = f"{row['tokens']} tokens: computed again / copied out / restored (s), times faster"
        outcome.figures[what] = (row["recompute_s"], row["keep_s"], row["restore_s"], row["times"])
    longest = rows[-1]
    outcome.expect(
        longest["times"] >= TIMES_AT_LEAST, f"only {longest['times']:.1f} times faster at the longest context"
    )


def _compare(bench: RestoreBench, context: int, repeats: int) -> dict[str, float]:
    tokens = [(7 * i + i * i) % SHAPE.vocab for i in range(context)]
    computed, restored, kept_s = [], [], []
    for _ in range(repeats):
        computed.append(bench.compute(tokens))
        taken_s, kept = bench.keep(tokens)
        kept_s.append(taken_s)
        restored.append(bench.restore(tokens, kept))
    recompute_s, restore_s = statistics.median(computed), statistics.median(restored)
    times = recompute_s / restore_s
    return {
        "tokens": context,
        "recompute_s": recompute_s,
        "keep_s": statistics.median(kept_s),
        "restore_s": restore_s,
        "times": times,
    }


async def measure_cost(plan: RestorePlan, outcome: BenchmarkResult, clusters: list[ClusterProcess]) -> None:
    """The same load with and without checkpoints, in turns."""
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(CampaignSession(cluster)) for cluster in clusters]
        rates: list[list[float]] = [[], []]
        for turn in range(plan.rounds + 1):
            for index in (0, 1) if turn % 2 else (1, 0):
                rate = await _sing(sessions[index], plan, turn)
                if turn:  # the first is for warming up
                    rates[index].append(rate)
                say(f"round {turn}, {('with', 'without')[index]} checkpoints: {rate:.0f} tokens/s")
        ((_, report),) = reports(await sessions[0].status())
        tokens = plan.rounds * plan.width * (plan.prompt_tokens + plan.output_tokens)
        seconds = sum(plan.width * plan.output_tokens / rate for rate in rates[0])
    costs = [1 - on / off for on, off in zip(*rates, strict=True)]
    cost = statistics.median(costs)
    outcome.figures["tokens/s with checkpoints, median"] = statistics.median(rates[0])
    outcome.figures["tokens/s without"] = statistics.median(rates[1])
    outcome.figures["cost of checkpoints, median of the rounds"] = cost
    outcome.figures["cost in each round"] = costs
    outcome.figures["engine's time in copies, share of the load's"] = report.checkpoint_busy_s_total / seconds
    outcome.figures["tokens copied, share of those computed"] = report.checkpointed_tokens_total / tokens
    outcome.figures["MB copied"] = report.checkpointed_bytes_total / 1e6
    outcome.expect(cost <= COST_AT_MOST, f"checkpoints cost {cost:.1%} of throughput")
    outcome.expect(report.checkpointed_tokens_total > 0, "nothing was checkpointed")


async def _sing(session: CampaignSession, plan: RestorePlan, turn: int) -> float:
    """Tokens per second of one round; other prompts in each, so that none is found in the slab."""
    songs = make_jobs(plan.width, plan.prompt_tokens, plan.output_tokens, session.vocabulary, seed=turn)
    chorus = VerifiedLoad(session.door, songs, plan.width)
    began_s = time.monotonic()
    await chorus.record_references()
    return plan.width * plan.output_tokens / (time.monotonic() - began_s)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    plan = RestorePlan()
    arguments.add_argument("--contexts", default=",".join(map(str, plan.contexts)), help="tokens")
    arguments.add_argument("--repeats", type=int, default=plan.repeats, help="of each context")
    arguments.add_argument("--rounds", type=int, default=plan.rounds, help="0: only the engine")
    given = arguments.parse_args(argv)
    contexts = tuple(int(one) for one in given.contexts.split(","))
    plan = RestorePlan(contexts=contexts, repeats=given.repeats, rounds=given.rounds)
    outcome = BenchmarkResult("restore: the host tier against computing again, and what filling it costs")
    measure_restore(plan, outcome)
    if plan.rounds:
        flags = ("--instances", "1", "--threads", "1", "--slots", "8192")
        with ExitStack() as stack:
            clusters = [
                stack.enter_context(ClusterProcess(*flags, *more)) for more in ((), ("--checkpoint-share", "0"))
            ]
            asyncio.run(measure_cost(plan, outcome, clusters))
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
