"""DistServe's offline search: the tensor parallelism of each side and the number of its instances that serve most.

For each split of the GPUs the largest rate is found at which the objective is met, by bisection on one workload; what
is printed is that rate per GPU. DistServe (section 4.1) tries each side alone and puts the best together; here both are
simulated at once, with what moves between them. Nothing depends on the clock of the machine.

    python -m benchmarks.simulation.parallelism --gpus 8 --device a100 --model-shape llama-3-8b --slo ttft=1,tpot=0.05
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dunlin.workload.loadgen.slo import meets_slo, parse_slos
from dunlin.workload.traffic.workload_spec import read_workload
from simulator.study.engine_groups import EngineGroup
from simulator.study.run_case import SimError, run_case
from simulator.study.sweep import Case

SHARES = (0.25, 0.5, 0.75)
"""Of the GPUs, what prompts get."""


@dataclass(frozen=True, slots=True)
class Split:
    """`prefills` instances of `prefill_tp` GPUs compute prompts, `decodes` of `decode_tp` GPUs go on with them."""

    prefills: int
    prefill_tp: int
    decodes: int
    decode_tp: int

    def groups(self, device: str) -> tuple[EngineGroup, EngineGroup]:
        """The instances of both sides."""
        return (
            EngineGroup(self.prefills, device, self.prefill_tp, "prefill"),
            EngineGroup(self.decodes, device, self.decode_tp, "decode"),
        )

    def flags(self) -> str:
        """What `dunlin sim` takes for it."""
        sides = ((self.prefills, self.prefill_tp, "prefill"), (self.decodes, self.decode_tp, "decode"))
        return " ".join(f"--engine {count}:tp={tp},role={role}" for count, tp, role in sides)


def splits(gpus: int, most_tp: int = 8) -> list[Split]:
    """The splits that use all of so many GPUs, at most `most_tp` an instance: for each parallelism of the two sides
    those nearest to `SHARES`, without two that are the same.
    """
    degrees = [1 << power for power in range(most_tp.bit_length()) if 1 << power <= most_tp]
    found: dict[Split, None] = {}
    for prefill_tp in degrees:
        for decode_tp in degrees:
            most = (gpus - decode_tp) // prefill_tp
            counts = [count for count in range(1, most + 1) if (gpus - count * prefill_tp) % decode_tp == 0]
            for share in SHARES if counts else ():
                prefills = min(counts, key=lambda count: abs(count * prefill_tp - share * gpus))
                found[Split(prefills, prefill_tp, (gpus - prefills * prefill_tp) // decode_tp, decode_tp)] = None
    return list(found)


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
    parser.add_argument("--most-tp", type=int, default=8, help="GPUs of an instance at most")
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
        groups = split.groups(given.device)
        case = Case("distserve", 0, given.device, given.model_shape, tier_bytes=128 * 10**9, engines=groups)
        flags = meets_slo(run_case(case, arrivals).records, slos)
        return bool(sum(flags) >= given.attainment * len(flags))

    found = []
    for split in splits(given.gpus, given.most_tp):
        try:
            rate = best_rate(partial(meets, split), given.most_rate * given.gpus)
        except SimError as error:
            print(f"{split.flags()}: {error}")
            continue
        found.append((rate / given.gpus, split))
        print(f"{split.flags()}: {rate / given.gpus:.2f} requests/s a GPU", flush=True)
    if found:
        print(f"best: {max(found, key=lambda one: one[0])[1].flags()}")


if __name__ == "__main__":
    main()
