"""What LoongServe's planner decides at one moment: `python -m benchmarks.simulation.group_plan [--instances 8]
[--pending 12] [--idle 0.5] [--seed 1] [--lengths mixed] [--device a100] [--shape lwm-text-1m-7b] [--tp 1]`.

A moment is drawn from the seed. Printed is what waits and decodes, and the plan: which requests are prefilled together,
with which degree of parallelism on which instances, for how long; where their KV stays; what moves, waits and grows,
and what was weighed for it.
"""

import argparse
import random
import sys
from collections.abc import Sequence

from benchmarks.harness.group_moments import LENGTHS, Moment, draw_moment
from benchmarks.harness.planner_times import fleet_times
from cli.common.output import table
from dunlin.policies.loongserve.inputs import NO_BATCH
from dunlin.policies.loongserve.plan import Plan, plan
from dunlin.policies.loongserve.scaling import KvShare


def moment_table(moment: Moment) -> str:
    """The instances, and what decodes there."""
    rows = []
    for each in moment.instances:
        batch = None if each.batch == NO_BATCH else moment.batches[each.batch]
        doing = "idle" if batch is None else f"batch {each.batch + 1}: {batch.rows} rows for {batch.executed_s:.1f} s"
        rows.append((each.address.name, each.location, f"{each.used_slots:,}", f"{each.unused_slots:,}", doing))
    return str(table(("instance", "node", "used slots", "unused", "doing"), rows))


def prefill_table(moment: Moment, found: Plan) -> str:
    """The batches of the plan."""
    rows = []
    for each in found.prefills:
        tokens = [moment.pending[index].tokens for index in each.requests]
        rows.append(
            (
                _requests(moment, each.requests),
                f"{sum(tokens):,}",
                str(len(each.instances)),
                _names(moment, each.instances),
                f"{each.step_s:.3f} s",
                _shares(moment, each.kept),
            )
        )
    return str(table(("requests (tokens)", "in all", "DoP", "instances, leader first", "takes", "KV stays at"), rows))


def others(moment: Moment, found: Plan) -> list[str]:
    """What else the plan says."""
    lines = []
    for move in found.moves:
        names = _names(moment, (move.source, move.target))
        lines.append(f"move {move.tokens:,} tokens of batch {move.batch + 1}: {names}")
    lines += [f"batch {index + 1} waits for the prefill" for index in found.preempted]
    for up in found.scale_ups:
        grown = f"batch {up.batch + 1} grows, for {up.reason}: {_names(moment, up.added)}"
        lines.append(f"{grown}; its rows' new KV: {_shares(moment, up.masters)}")
    for each in found.weighed:
        sign = ">" if each.gain > each.cost else "<="
        taken = "taken" if each.taken else "left"
        lines.append(f"weighed {each.what} {list(each.of)}: gain {each.gain:.4g} {sign} cost {each.cost:.4g}: {taken}")
    return lines


def _requests(moment: Moment, indices: Sequence[int]) -> str:
    parts = [f"{moment.pending[index].number} ({moment.pending[index].tokens:,})" for index in indices[:4]]
    return ", ".join(parts) + (f" and {len(indices) - 4} more" if len(indices) > 4 else "")


def _names(moment: Moment, indices: Sequence[int]) -> str:
    return " ".join(moment.instances[index].address.name for index in indices)


def _shares(moment: Moment, shares: Sequence[KvShare]) -> str:
    return ", ".join(f"{moment.instances[each.instance].address.name} {each.count:,}" for each in shares)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--pending", type=int, default=12)
    parser.add_argument("--idle", type=float, default=0.5, help="share of the instances that are idle")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lengths", choices=sorted(LENGTHS), default="mixed")
    parser.add_argument("--device", default="a100")
    parser.add_argument("--shape", default="lwm-text-1m-7b")
    parser.add_argument("--tp", type=int, default=1)
    options = parser.parse_args()
    timing, times = fleet_times(options.device, options.shape, options.tp)
    draw = random.Random(options.seed)
    moment = draw_moment(draw, options.instances, options.pending, options.idle, timing.slots, options.lengths)
    found = plan(moment.pending, moment.batches, moment.instances, times)
    print(
        f"{options.shape}, instances of {options.tp} x {options.device}; tipping point {times.tipping_s * 1e3:.1f} ms"
    )
    print("waiting:", _requests(moment, range(len(moment.pending))), "\n")
    print(moment_table(moment), "\n")
    print(prefill_table(moment, found))
    print("\n".join(["", *others(moment, found)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
