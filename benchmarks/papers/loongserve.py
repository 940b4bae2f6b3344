"""LoongServe's experiments (its section 7) in the twin: LWM-7B on eight simulated A800, beside what the paper prints.

Fig. 10 and 11: latencies per token by rate, and the most that a system serves under the objective, 25 times the latency
of a request that has all GPUs to itself. Fig. 12: the share of requests that keep their own objective, for
mixes of lengths by Zipf; Fig. 13: with and without scale-up. Fig. 14 and 15 are the cost model's
(`python -m benchmarks.simulation.group_times`). With --mix figure 10's systems under other lengths. A system that fails
both objectives of Fig. 10 is not run at higher rates. Everything is virtual time: the result is the same on any
machine.

    python -m benchmarks.papers.loongserve [--lengths FOLDER] [--figure 10,11,12,13] [--only ShareGPT,Mixed]
                                           [--mix 'mixed(sharegpt,fixed(250000,200))' --rates 0.1,0.2]
                                           [--systems vllm] [--seeds 0,1] [--shorter 1] [--overhead dunlin|papers]
                                           [--results FILE] [--plot DIR]

With --results a run that is in the file is not made again: what was cut short goes on, and --plot draws what is there.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.papers.loongserve_pictures import draw
from benchmarks.papers.loongserve_results import LoongRuns, Panel
from benchmarks.papers.loongserve_runs import PAPERS, Plan
from benchmarks.papers.loongserve_scenes import CHUNKED, DISTSERVE, FIGURES, TUNED, VLLM, Scene, scene_of, scenes
from benchmarks.papers.loongserve_tables import show, summarise

TUNING_SEED = 7
MIX_S = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the figures that were asked for."""
    options = _options(argv)
    wanted, titles = options.figure.split(","), options.only.split(",") if options.only else []
    systems = options.systems.split(",") if options.systems else []
    runs = LoongRuns(options.results, options.cached)
    chosen = [
        scene
        for scene in scenes(options.lengths, options.shorter)
        if scene.figure in wanted and (not titles or scene.title in titles)
    ]
    if options.mix:
        rates = [float(rate) for rate in options.rates.split(",")]
        chosen = [scene_of(options.mix, MIX_S / options.shorter, rates)]
    if options.tune:
        for scene in chosen:
            tune(runs, scene, Plan(TUNING_SEED, options.overhead))
        return 0
    panels = []
    for scene in chosen:
        panel = Panel(scene)
        for seed in map(int, options.seeds.split(",")):
            for system in [each for each in scene.systems if not systems or each.name in systems]:
                panel.add(system, runs.by_rate(Plan(seed, options.overhead), scene, system))
        panels.append(panel)
        show(panel)
        sys.stdout.flush()
    summarise(panels)
    if options.plot:
        name = "-papers" if options.overhead == PAPERS else ""
        print("\n" + "\n".join(f"drawn: {path}" for path in draw(options.plot, name, panels)))
    return 0


def tune(runs: LoongRuns, scene: Scene, plan: Plan) -> None:
    """Print what each budget of the systems that have one comes to, at the second rate."""
    for system in (VLLM, CHUNKED, DISTSERVE):
        for budget in TUNED:
            tried = replace(system, settings=(("instance.scheduler.budget_tokens", budget),))
            row = runs.row(plan, scene, tried, scene.rates[1])
            print(f"{scene.title}, {system.name}, {budget}: {row.token_ms:.2f} and {row.input_ms:.2f} ms", flush=True)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.papers.loongserve", description=__doc__)
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument("--lengths", type=Path, metavar="FOLDER", help="lists of lengths (otherwise drawn)")
    flags.add_argument("--figure", default=",".join(FIGURES), help="which, by comma")
    flags.add_argument("--only", default="", help="panels, by comma")
    flags.add_argument("--mix", default="", metavar="LENGTHS", help="another load, as workloads name lengths")
    flags.add_argument("--rates", default="0.1,0.2,0.4", help="of --mix, rising, requests/s by comma")
    flags.add_argument("--systems", default="", help="by comma; otherwise all")
    flags.add_argument("--seeds", default="0", help="by comma; tables and pictures show their means")
    flags.add_argument("--shorter", type=float, default=1.0, metavar="TIMES", help="loads last so many times less")
    flags.add_argument("--overhead", default="dunlin", help="of the engine's host, for all alike; or: papers")
    flags.add_argument("--tune", action="store_true", help="only: budgets of the baselines, with another seed")
    flags.add_argument("--results", type=Path, metavar="FILE", help="keep and find runs there")
    flags.add_argument("--cached", action="store_true", help="make no run that is not in --results")
    flags.add_argument("--plot", type=Path, metavar="DIR", help="draw the figures there (needs matplotlib)")
    return flags.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
