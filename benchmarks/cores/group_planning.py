"""What a plan of LoongServe's manager costs: `python -m benchmarks.cores.group_planning [--instances 64]
[--pending 256] [--plans 150] [--json]`.

Processor time of `policies.loongserve.plan` at drawn moments: chat or LoongServe's Mixed lengths wait, and all, half or
few of the instances are idle. The tipping point is the model's own, and ten times that, at which many more requests are
planned at once. And how much longer the latencies of batches are than those of the exact dynamic programme, which
weighs all cuts.
"""

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import replace

from benchmarks.harness.group_moments import LENGTHS, Moment, draw_moment
from benchmarks.harness.planner_times import fleet_times
from benchmarks.harness.report import BenchmarkResult, finish
from dunlin.policies.loongserve.batching import BatchingProblem, BatchPlan, best_batches
from dunlin.policies.loongserve.coarse import batch_within
from dunlin.policies.loongserve.inputs import GroupTimes
from dunlin.policies.loongserve.plan import PLAN_LIMITS, Plan, plan

IDLE = {"few idle": 0.1, "half idle": 0.5, "all idle": 1.0}
EXACT = ((6, 16), (12, 64), (24, 32), (40, 64))
"""Requests and instances of batching problems that are solved exactly, too."""
GOAL_US = 1000.0


def plan_us(moments: Iterable[Moment], times: GroupTimes) -> tuple[list[float], list[Plan]]:
    """Microseconds of each plan, and the plans."""
    took, plans = [], []
    for moment in moments:
        began_ns = time.process_time_ns()
        found = plan(moment.pending, moment.batches, moment.instances, times)
        took.append((time.process_time_ns() - began_ns) / 1e3)
        plans.append(found)
    return took, plans


def percentile(values: list[float], share: float) -> float:
    """The value that this share of them is at most."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def costs(result: BenchmarkResult, times: GroupTimes, slots: int, options: argparse.Namespace) -> None:
    """Figures of plans at all kinds of moments."""
    for factor in (1.0, 10.0):
        everything: list[float] = []
        tipping = replace(times, tipping_s=factor * times.tipping_s)
        for lengths in sorted(LENGTHS):
            for name, share in IDLE.items():
                draw = random.Random(1)
                moments = [
                    draw_moment(draw, options.instances, options.pending, share, slots, lengths)
                    for _ in range(options.plans)
                ]
                took, plans = plan_us(moments, tipping)
                everything += took
                requests = statistics.fmean(sum(len(each.requests) for each in one.prefills) for one in plans)
                found = f"p50 {percentile(took, 0.5):.0f} µs, p99 {percentile(took, 0.99):.0f} µs, "
                result.figures[f"{lengths}, {name}, tipping x{factor:g}"] = found + f"{requests:.1f} requests a plan"
        all_of_them = [percentile(everything, 0.5), percentile(everything, 0.99), max(everything)]
        result.figures[f"all plans, tipping x{factor:g}: p50, p99, max µs"] = all_of_them
        if factor == 1.0:
            result.expect(all_of_them[1] <= GOAL_US, f"p99 of {all_of_them[1]:.0f} µs is above {GOAL_US:.0f}")


def latency_s(batches: Iterable[BatchPlan]) -> float:
    """The sum of input latencies."""
    return sum(batch.latency_s for batch in batches)


def quality(result: BenchmarkResult, times: GroupTimes, slots: int) -> None:
    """How much is lost to fewer cuts, where slots are plenty and where they are scarce."""
    for lengths, length_of in sorted(LENGTHS.items()):
        for requests, instances in EXACT:
            draw, lost = random.Random(7), []
            for _ in range(4):
                waiting = sorted((length_of(draw) for _ in range(requests)), reverse=True)
                room = sorted(draw.randrange(slots // 4, slots) for _ in range(instances))
                while sum(waiting) > sum(room):
                    waiting = waiting[1:]
                best = best_batches(BatchingProblem(waiting, room, times))
                found = batch_within(waiting, room, times, PLAN_LIMITS)
                lost.append(latency_s(found) / latency_s(best or ()) - 1.0)
            name = f"{lengths}, {requests} requests on {instances}: latency above the exact plan's"
            result.figures[name] = f"mean {statistics.fmean(lost):.1%}, most {max(lost):.1%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=64)
    parser.add_argument("--pending", type=int, default=256)
    parser.add_argument("--plans", type=int, default=150, help="plans of each kind of moment")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    timing, times = fleet_times("a100", "lwm-text-1m-7b", 1)
    result = BenchmarkResult(f"A plan for {options.instances} instances and {options.pending} pending requests")
    gc.disable()  # its pauses are the whole process's, not a plan's
    costs(result, times, timing.slots, options)
    quality(result, times, timing.slots)
    return finish(result, options.json)


if __name__ == "__main__":
    sys.exit(main())
