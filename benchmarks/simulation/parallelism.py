"""DistServe's offline search: the tensor parallelism and the share of prefill instances that serve most on some GPUs.

For each split the largest rate is found at which the objective is met, by bisection on one workload; what is printed is
that rate per GPU. Both sides have the same parallelism: instances of one cluster are alike. Nothing depends on the
clock of the machine.

    python -m benchmarks.simulation.parallelism --gpus 8 --device a100 --model-shape llama-3-8b --slo ttft=1,tpot=0.05
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dunlin.workload.loadgen.slo import meets_slo, parse_slos
from dunlin.workload.traffic.workload_spec import read_workload
from simulator.study.run_case import SimError, run_case
from simulator.study.sweep import Case

SHARES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Split:
    """Instances of `tp` GPUs, of which `share` compute prompts."""

    tp: int
    share: float
    instances: int


def splits(gpus: int, most_tp: int = 8) -> list[Split]:
    """All splits of so many GPUs into at least two instances, without two that come to the same."""
    found: dict[tuple[int, int], Split] = {}
    tp = 1
    while tp <= min(most_tp, gpus // 2):
        if gpus % tp == 0:
            for share in SHARES:
                instances = gpus // tp
                prefill = max(1, min(instances - 1, round(share * instances)))
                found.setdefault((tp, prefill), Split(tp, share, instances))
        tp *= 2
    return list(found.values())


def best_rate(meets: Callable[[float], bool], most: float, steps: int = 4) -> float:
    """The largest rate up to `most` that meets the objective, to a part of 2^steps; 0 if none of those tried does."""
    low, high = 0.0, most
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low


def main() -> None:
    """Search, and print a line per split, the best last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--device", default="a100")
    parser.add_argument("--model-shape", default="llama-3-8b")
    parser.add_argument("--slo", action="append", default=[])
    parser.add_argument("--lengths", default="sharegpt")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--most-rate", type=float, default=8.0, help="requests a second and GPU")
    parser.add_argument("--attainment", type=float, default=0.9)
    given = parser.parse_args()
    slos = parse_slos(given.slo or ["ttft=1,tpot=0.05"])

    def meets(split: Split, rate: float) -> bool:
        arrivals = read_workload(f"poisson:rate={rate:g},duration={given.seconds:g},lengths={given.lengths}")
        case = Case(
            "distserve", split.instances, given.device, given.model_shape, tp=split.tp, tier_bytes=128 * 10**9,
            settings=(("manager.groups.prefill_share", split.share),),
        )  # fmt: skip
        flags = meets_slo(run_case(case, arrivals).records, slos)
        return bool(sum(flags) >= given.attainment * len(flags))

    found = []
    for split in splits(given.gpus):
        try:
            rate = best_rate(partial(meets, split), given.most_rate * given.gpus)
        except SimError as error:
            print(f"tp {split.tp}: {error}")
            continue
        found.append((rate / given.gpus, split))
        print(
            f"tp {split.tp}, {split.share:.0%} of {split.instances} prefill: {rate / given.gpus:.2f} requests/s a GPU"
        )
    if found:
        rate, split = max(found, key=lambda one: one[0])
        print(f"best: --tp {split.tp} --set manager.groups.prefill_share={split.share:g}")


if __name__ == "__main__":
    main()
