"""How near the simulator is to chat beside batch work on real processes: ConServe's presets, live and in the twin.

    python -m benchmarks.papers.conserve_fidelity [--systems unified conserve vllm++] [--parts 3] [--keep DIR]

One instance with its engine on one core, by a profile of this machine with the costs of its processes. Each part is
chat at a steady rate beside batch requests that are all there at the start and last about as long; before and after
each part runs a reference load of short requests, from which alone the speed of the moment is taken (one factor on all
steps and one time of a hop, as in `benchmarks.simulation.held_out`). Compared over all parts of a preset are p50 and
p99 of chat's TTFT and TPOT, and the tokens per second of all requests. Exit code 1 if one differs by more than
`--limit`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.model_shapes import SHAPES
from benchmarks.papers.conserve_live import BATCH_ANSWER, BATCH_TOKENS, CHAT_ANSWER, CHAT_SHARE, CHAT_TOKENS, usual_rate
from benchmarks.simulation.held_out import at_speed, pin_instances, speed_of
from cli.launch.cluster_process import ClusterProcess, dunlin_command
from cli.profiling.process_cost_probe import failed_requests, record_workload, without_idle_cost
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.models import BatchCounts
from dunlin.cost.timing_loader import load_timing
from dunlin.engine.decoder.loading.random_checkpoint import write_random_checkpoint
from dunlin.workload.loadgen.run_record import RecordedRun
from dunlin.workload.loadgen.stats import RequestRecord
from simulator.study.live_comparison import Difference, differences, resimulate

SYSTEMS = ("vllm++", "conserve", "unified")
MODEL = "A"
PART_S = 20.0
CHAT = f"gamma:rate={{rate:.3f}},cv=1,duration={PART_S:g},lengths=fixed({CHAT_TOKENS},{CHAT_ANSWER}),class=chat"
BATCH = f"gamma:rate=1000,cv=1,requests={{count}},lengths=fixed({BATCH_TOKENS},{BATCH_ANSWER}),class=batch"
REFERENCE = "poisson:rate={rate:.3f},duration=8,lengths=uniform(16..64,16..48)"
REST_S = 1.5
OBJECTIVES_S = (0.25, 0.035)
"""Of the first token and of each further one: about what chat alone has on two cores."""
SIMULATIONS = 4
"""Of each part, beginning at other places of the machine's course of events."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part between two references."""

    before: RecordedRun
    live: RecordedRun
    after: RecordedRun


def batch_count(times: EngineTiming, rate: float) -> int:
    """Batch requests that take about as long as the part beside its chat, by the profile."""
    prefill, decode = BatchCounts(), BatchCounts()
    prefill.add_prefill(BATCH_TOKENS, 0)
    for _ in range(8):
        decode.add_decode(BATCH_TOKENS)
    one_s = times.step_s(prefill) + BATCH_ANSWER * times.step_s(decode) / 8
    return max(1, round(PART_S * (1.0 - rate / usual_rate(times)) / one_s))


def compared(parts: Sequence[Part], timing: EngineTiming) -> list[Difference]:
    """Chat's latencies and the rate of all tokens, of all parts together."""
    live: list[RequestRecord] = []
    simulated: list[RequestRecord] = []
    rates: list[tuple[float, float]] = []
    for part in parts:
        at = at_speed(timing, speed_of((part.before, part.after), timing))
        again = [resimulate(part.live, at, number / SIMULATIONS) for number in range(SIMULATIONS)]
        live += chat_of(part.live, part.live.records)
        simulated += [record for records in again for record in chat_of(part.live, records)]
        rates.append((tokens_per_s(part.live.records), sum(map(tokens_per_s, again)) / SIMULATIONS))
    alone, twin = (sum(rate) / len(rates) for rate in zip(*rates, strict=True))
    return [*differences(live, simulated), Difference("tokens/s", "", alone, twin)]


def chat_of(run: RecordedRun, records: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Of the records of a run, live or simulated, those of its interactive requests."""
    return [record for arrival, record in zip(run.arrivals, records, strict=True) if arrival.label == "chat"]


def tokens_per_s(records: Sequence[RequestRecord]) -> float:
    """Prompts and answers of all requests that got a token, until the last one came."""
    answered = [record for record in records if record.token_s]
    tokens = sum(record.input_tokens + len(record.token_s) for record in answered)
    return tokens / max(record.token_s[-1] for record in answered)


def record_parts(cluster: ClusterProcess, count: int, rate: float, batch: int, keep: Path | None) -> Iterator[Part]:
    """Record so many parts, between references. Raises ValueError if a request fails."""
    cpus = sorted(os.sched_getaffinity(0))

    def load(name: str, spec: str, seed: int) -> RecordedRun:
        time.sleep(REST_S)
        run = record_workload(cluster, name, spec, cpus, "--seed", str(seed))
        if failed_requests(run):
            raise ValueError(f"{failed_requests(run)} of {len(run.records)} requests of {name} failed")
        if keep is not None:
            (keep / f"{name}.jsonl").write_bytes((cluster.data_dir / f"{name}.jsonl").read_bytes())
        return run

    before = load("reference-0", REFERENCE.format(rate=2 * rate), 1000)
    for number in range(1, count + 1):
        spec = f"{CHAT.format(rate=rate)} + {BATCH.format(count=batch)}"
        live = load(f"part-{number}", spec, number)
        after = load(f"reference-{number}", REFERENCE.format(rate=2 * rate), 1000 + number)
        yield Part(before, live, after)
        before = after


def compare(system: str, options: argparse.Namespace, folder: Path, timing: EngineTiming) -> list[Difference]:
    """One preset, live and simulated, printed."""
    rate = CHAT_SHARE * usual_rate(timing)
    batch, keep = batch_count(timing, rate), None
    if options.keep is not None:
        keep = options.keep / system
        keep.mkdir(parents=True, exist_ok=True)
    ttft_s, tpot_s = OBJECTIVES_S
    settings = (f"engine.profile={folder / 'profile.db'}", f"objectives.ttft_s={ttft_s}", f"objectives.tpot_s={tpot_s}")
    flags = [word for setting in settings for word in ("--set", f"instance.{setting}")]
    model = ("--model", str(folder / "model"), "--dtype", "bf16", "--threads", "1")
    with ClusterProcess("--instances", "1", "--preset", system, *model, *flags) as cluster:
        time.sleep(10.0)  # the engine that stands by loads
        pin_instances(cluster)
        parts = list(record_parts(cluster, options.parts, rate, batch, keep))
    found = compared(parts, timing)
    print(f"{system}: {len(parts)} parts, chat at {rate:.2f}/s beside {batch} batch requests")
    for each in found:
        unit, scale = ("ms", 1e3) if each.quantile else ("", 1.0)
        values = f"{each.live_s * scale:10.1f}{each.simulated_s * scale:10.1f}"
        print(f"  {each.measure:9}{each.quantile:5}{unit:3}{values}{each.relative:>+8.1%}", flush=True)
    return found


def _profile(folder: Path, quick: bool) -> EngineTiming:
    model, store = folder / "model", folder / "profile.db"
    write_random_checkpoint(model, shape=SHAPES[MODEL])
    flags = ("--model", str(model), "--dtype", "bf16", "--threads", "1", "--cpu", "0", "--host", "--out", str(store))
    more = ("--quick",) if quick else ()
    subprocess.run(dunlin_command("profile", *flags, *more), check=True, stdout=sys.stderr)
    timing = load_timing(str(store), str(model))
    assert timing.host is not None
    return replace(timing, host=without_idle_cost(timing.host))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 0: all within the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), metavar="PRESET")
    parser.add_argument("--parts", type=int, default=3, help="of 20 s of chat, for each preset")
    parser.add_argument("--quick", action="store_true", help="a coarse profile: a try, not a result")
    parser.add_argument("--keep", type=Path, help="a folder for the records of the live runs")
    parser.add_argument("--limit", type=float, default=0.10)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        timing = _profile(folder, options.quick)
        found = [each for system in options.systems for each in compare(system, options, folder, timing)]
    worst = max(abs(each.relative) for each in found)
    print(f"the largest difference is {worst:.1%}; the limit is {options.limit:.0%}")
    return 0 if worst <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
