"""ConServe's experiments (its section 6) in the twin: chat beside batch work on one GPU, beside what the paper prints.

Batch work is synthetic LongBench (means of the published lengths, cut to the positions of the model); more of it waits
at the start than any system can end. Online requests are 1,024 tokens in and 128 out, and in Fig. 5 samples of a trace
like BurstGPT's. The objectives are the p99s that chat alone reaches. Rates count what is computed within the horizon:
prompts of requests that got a first token, and all generated tokens. Everything is virtual time: the result is the same
on any machine.

    python -m benchmarks.papers.conserve [--device a100|h200] [--horizon 180] [--seeds 0,1] [--figure real,ladder]
                                         [--results FILE] [--plot DIR]

With --results a run that is in the file is not made again: what was cut short goes on, and --plot draws what is there.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.papers.conserve_responses import show_responses
from benchmarks.papers.conserve_scenes import FIGURES, ONLINE_ONLY, SETUPS, Scene, Setup, scenes
from benchmarks.papers.conserve_tables import show, summarise
from benchmarks.papers.drawing import draw
from benchmarks.papers.results import Found, Results
from benchmarks.papers.running import Plan, Row, run

RESPONSES = "responses"
RATE_STEPS = range(2, 20)
"""Tried for the busiest rate, in halves of the setup's factor."""
KEPT_TTFT_MS, KEPT_TPOT_MS = 1500.0, 110.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the figures that were asked for."""
    options = _options(argv)
    setup, results = SETUPS[options.device], Results(options.results)
    wanted, seeds = options.figure.split(","), [int(seed) for seed in options.seeds.split(",")]
    if options.find_rate:
        return find_rate(setup, options.horizon, seeds, options.trace)
    found = Found()
    for seed in seeds:
        plan = Plan(setup, options.horizon, seed, options.overhead)
        print(
            f"\n{setup.title}, {plan.horizon_s:g} s, seed {seed}, overhead of {plan.overhead}, synthetic batch lengths"
        )
        for scene in scenes(setup, plan.horizon_s, options.trace):
            if scene.figure in wanted:
                rows = run_scene(plan, scene, results)
                show(scene, rows)
                found.add(scene, rows)
                sys.stdout.flush()
    summarise(found)
    if RESPONSES in wanted:
        show_responses(setup)
    if options.plot:
        print("\n" + "\n".join(f"drawn: {path}" for path in draw(options.plot, setup, found)))
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.papers.conserve", description=__doc__)
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument("--device", choices=list(SETUPS), default="a100")
    flags.add_argument("--horizon", type=float, default=180.0, metavar="S", help="virtual seconds of load")
    flags.add_argument("--seeds", default="0", help="by comma; pictures show their means")
    flags.add_argument("--figure", default=",".join((*FIGURES, RESPONSES)), help="which, by comma")
    flags.add_argument("--trace", type=Path, metavar="FILE", help="the trace of Fig. 5 (otherwise made)")
    flags.add_argument("--overhead", default="dunlin", help="of the engine's host, for all systems: dunlin, vllm or MS")
    flags.add_argument("--results", type=Path, metavar="FILE", help="keep and find runs there")
    flags.add_argument("--plot", type=Path, metavar="DIR", help="draw the figures there (needs matplotlib)")
    flags.add_argument("--find-rate", action="store_true", help="only: online requests of Fig. 5 alone, by rate")
    return flags.parse_args(argv)


def run_scene(plan: Plan, scene: Scene, results: Results) -> dict[str, Row]:
    """All systems of a scene; the first one's times are the objectives of the others."""
    rows: dict[str, Row] = {}
    for system in scene.systems:
        rows[system.name] = results.row(plan, scene, system, rows.get(ONLINE_ONLY.name))
    return rows


def find_rate(setup: Setup, horizon_s: float, seeds: Sequence[int], trace: Path | None) -> int:
    """Print the times of online requests alone at rising rates of the burst trace, up to the first that is late."""
    for step in RATE_STEPS:
        tried = replace(setup, busiest_rate=step / 2 * setup.rate_factor)
        scene = next(scenes(tried, horizon_s, trace))
        rows = [run(Plan(setup, horizon_s, seed), scene, ONLINE_ONLY, None) for seed in seeds]
        found = "; ".join(f"TTFT p99 {row.ttft_p99:.0f} ms, TPOT p99 {row.tpot_p99:.1f} ms" for row in rows)
        print(f"{tried.busiest_rate:g}/s: {found}", flush=True)
        if any(row.ttft_p99 > KEPT_TTFT_MS or row.tpot_p99 > KEPT_TPOT_MS for row in rows):
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
