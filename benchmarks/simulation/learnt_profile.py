"""Chat beside batch work with and without a profile of the engine, in the twin: what learning the times of steps costs.

    python -m benchmarks.simulation.learnt_profile [--preset unified] [--device a100] [--seeds 0,1] [--figure rate]

The same requests twice, under the objectives that chat alone reaches: instances that know the times of their steps
exactly from the first one on, and instances that learn them. Compared is what came after the first `--learning`
seconds; those are printed besides. Loads are those of `benchmarks.papers.conserve`. Everything is virtual time: the
result is the same on any machine. Exit code 1 where a mean over the seeds is further off than `--most`.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.papers.conserve_scenes import FIGURES, ONLINE_ONLY, SETUPS, Scene, System, scenes
from benchmarks.papers.running import Plan, gaps_s, outcome_of, run, tokens_within, ttft_s
from cli.common.output import table
from dunlin.workload.loadgen.stats import RequestRecord, percentiles


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run: p99s in ms of requests that arrived and gaps that ended in it, and tokens per second."""

    ttft_p99: float
    tpot_p99: float
    total: float


def part_of(records: Sequence[RequestRecord], start_s: float, stop_s: float) -> Part:
    """What came from `start_s` to `stop_s`; the times are of chat."""
    chat = [record for record in records if record.label == "chat" and start_s <= record.at_s < stop_s]
    total = tokens_within(records, start_s, stop_s) / (stop_s - start_s)
    return Part(1e3 * percentiles(ttft_s(chat)).p99, 1e3 * percentiles(gaps_s(chat)).p99, total)


def compare(plan: Plan, scene: Scene, preset: str, learning_s: float) -> tuple[list[tuple[str, Part]], list[float]]:
    """The rows of the table; TTFT, TPOT and tokens of the learning instance over those of the one with a profile."""
    ideal = run(plan, scene, ONLINE_ONLY, None)
    aims = 1e-3 * ideal.ttft_p99, 1e-3 * ideal.tpot_p99
    rows: list[tuple[str, Part]] = []
    for name in ("profile", "learning"):
        records = outcome_of(plan, scene, System(preset, preset), aims, has_profiles=name == "profile").records
        rows.append((f"{name}, first {learning_s:g} s", part_of(records, 0.0, learning_s)))
        rows.append((f"{name}, then", part_of(records, learning_s, plan.horizon_s)))
    known, learnt = rows[1][1], rows[3][1]
    pairs = ((learnt.ttft_p99, known.ttft_p99), (learnt.tpot_p99, known.tpot_p99), (learnt.total, known.total))
    return rows, [mine / theirs for mine, theirs in pairs]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the loads that were asked for."""
    options = _options(argv)
    setup, is_near = SETUPS[options.device], True
    for scene in scenes(setup, options.horizon):
        if scene.figure != options.figure:
            continue
        ratios: list[list[float]] = []
        print(f"\n{setup.title}, {scene.title}, {options.preset}, {options.horizon:g} s")
        for seed in map(int, options.seeds.split(",")):
            rows, ratio = compare(Plan(setup, options.horizon, seed), scene, options.preset, options.learning)
            ratios.append(ratio)
            print(table((f"seed {seed}", "TTFT p99, ms", "TPOT p99, ms", "tokens/s"), [_cells(*row) for row in rows]))
        means = [fmean(column) - 1.0 for column in zip(*ratios, strict=True)]
        print("learning against profile, mean: TTFT {:+.1%}, TPOT {:+.1%}, tokens {:+.1%}".format(*means))
        is_near &= means[0] <= options.most and means[1] <= options.most and means[2] >= -options.most
        sys.stdout.flush()
    return 0 if is_near else 1


def _cells(name: str, part: Part) -> tuple[str, ...]:
    return name, f"{part.ttft_p99:.0f}", f"{part.tpot_p99:.1f}", f"{part.total:.0f}"


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.simulation.learnt_profile", description=__doc__)
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument("--preset", default="unified")
    flags.add_argument("--device", choices=list(SETUPS), default="a100")
    flags.add_argument("--figure", choices=FIGURES, default="rate", help="whose loads")
    flags.add_argument("--horizon", type=float, default=60.0, metavar="S", help="virtual seconds of load")
    flags.add_argument("--learning", type=float, default=15.0, metavar="S", help="of these, not compared")
    flags.add_argument("--seeds", default="0,1", help="by comma")
    flags.add_argument("--most", type=float, default=0.10, metavar="SHARE", help="the difference that is allowed")
    return flags.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
