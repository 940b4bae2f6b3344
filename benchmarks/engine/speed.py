"""The engine beside transformers, another commit's engine and the machine's limits, in one run.

    python -m benchmarks.engine.speed --models A,B --threads 2 --rounds 5
    git worktree add ../older 5d01139
    python -m benchmarks.engine.speed --tree ../older

Tokens per second of a prompt of 512 tokens (its tokens), of decode steps at batch 1, 16 and 64 (128 tokens of context
each), of 16 ragged rows (contexts of 100 to 1,000), also with each sequence's slots in two extents; of a prompt of
2,048 tokens, of 16 prompts of 20 to 200 (their tokens), and of 64 requests of 128 + 128 tokens from their prompts to
their ends (output tokens). bf16, random weights.

Each contestant is a process of its own that waits while another computes; they take turns within every round, so that a
busy machine hits all alike. Ratios are of rates of the same round: median (least to greatest); `by CPU` of rates per
second of the process's CPU time, which other processes hardly touch. `of roofline`: the time in which the machine reads
the steps' weights and KV, or computes their products at its best rate, over the engine's time; `of linears`: the time
of torch's own products of the same shapes, over the engine's. `others`: cores that other processes kept busy in
the most disturbed turn of a round. A column is below the other commit's if it is slower in every round that nothing
disturbed.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from benchmarks.engine.comparison import ENGINE, TRANSFORMERS, Column, ModelSpeed
from benchmarks.engine.rounds import SpeedPlan, run, tree_name
from benchmarks.engine.workloads import WORKLOADS
from benchmarks.harness.model_shapes import SHAPES
from benchmarks.harness.report import machine
from cli.common.output import table

AGREE_AT_LEAST = 0.8
"""Of first tokens that are transformers', over all workloads: bf16 decides ties differently."""


def failures(plan: SpeedPlan, found: dict[str, ModelSpeed]) -> list[str]:
    """What did not hold: a column below the other tree's or not judged, or texts that are not transformers'."""
    wrong = []
    for model, speed in found.items():
        if plan.tree is not None:
            wrong += [f"{model}, {text}" for text in _below(speed, tree_name(plan.tree))]
        columns = speed.columns.values()
        agreeing = sum(column.agreeing(TRANSFORMERS) for column in columns)
        asked = sum(len(column.first_tokens[ENGINE]) for column in columns)
        if agreeing < AGREE_AT_LEAST * asked:
            wrong.append(f"{model}: only {agreeing} of {asked} first tokens are transformers'")
    return wrong


def _below(speed: ModelSpeed, other: str) -> Iterator[str]:
    """The columns that are below the other tree's, or that cannot be judged."""
    for workload, column in speed.columns.items():
        ratio = column.undisturbed(other)
        if ratio is None:
            yield f"{workload}: not judged, other processes kept {_others(column):.1f} cores busy"
        elif ratio.is_below:
            yield f"{workload}: {ratio.median:.2f} of {other}"


def _others(column: Column) -> float:
    most: list[float] = [max(cores) for cores in zip(*column.others.values(), strict=True)]
    return median(most)


def model_table(speed: ModelSpeed) -> str:
    """One line per workload."""
    columns = speed.columns
    names = list(next(iter(columns.values())).rates)
    others = [name for name in names if name != ENGINE]
    header = ("tokens/s", *names, *_pairs(others), "of roofline", "of linears", "others")
    rows = []
    for workload, column in columns.items():
        rates = [f"{median(column.rates[name]):.0f}" for name in names]
        ratios = [text for name in others for text in _ratios(column, name)]
        shares = [f"{median(column.roofline):.2f}", f"{median(column.linears):.2f}"]
        rows.append((workload, *rates, *ratios, *shares, f"{_others(column):.1f}"))
    return table(header, rows)


def limits_line(speed: ModelSpeed) -> str:
    """The machine's limits: medians over the rounds."""
    read = median(one.read_bytes_s for one in speed.limits)
    best = median(one.operations_s for one in speed.limits)
    counts = speed.limits[0].linears_s
    linears = {rows: median(one.linears_s[rows] for one in speed.limits) for rows in counts}
    times = ", ".join(f"{rows}: {seconds * 1e3:.1f}" for rows, seconds in linears.items())
    return f"memory read {read / 1e9:.1f} GB/s, product {best / 1e9:.0f} GFLOP/s; linears by tokens, ms: {times}"


def _pairs(others: Sequence[str]) -> list[str]:
    return [text for name in others for text in (f"/ {name}", "by CPU")]


def _ratios(column: Column, other: str) -> tuple[str, str]:
    ratio = column.against(other)
    return f"{ratio.median:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f})", f"{column.by_cpu(other).median:.2f}"


def show(plan: SpeedPlan, found: dict[str, ModelSpeed], wrong: list[str], load: tuple[float, float]) -> None:
    """Print the tables."""
    print(f"{machine()}; {plan.threads} threads, bf16, {plan.rounds} rounds; load {load[0]:.1f} to {load[1]:.1f}")
    for model, speed in found.items():
        print(f"\nmodel {model}: {limits_line(speed)}\n{model_table(speed)}")
    print("\n" + ("everything held" if not wrong else "BROKEN:\n  " + "\n  ".join(wrong)))


def as_json(plan: SpeedPlan, found: dict[str, ModelSpeed], wrong: list[str], load: tuple[float, float]) -> str:
    """All rounds."""
    models = {
        model: {
            "columns": {workload: asdict(column) for workload, column in speed.columns.items()},
            "limits": [asdict(one) for one in speed.limits],
        }
        for model, speed in found.items()
    }
    whole = {"machine": machine(), "threads": plan.threads, "load": load, "models": models, "broken": wrong}
    return json.dumps(whole, indent=2)


def _parse(argv: list[str] | None) -> tuple[SpeedPlan, bool]:
    usual = SpeedPlan()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(usual.models), help=f"of {', '.join(SHAPES)} (default: A,B)")
    parser.add_argument("--threads", type=int, default=usual.threads, help="of each contestant (default: all cores)")
    parser.add_argument("--rounds", type=int, default=usual.rounds, help=f"default: {usual.rounds}")
    parser.add_argument("--tree", type=Path, help="the checkout of another commit to compare with")
    parser.add_argument("--only", help="workloads whose name contains this")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(argv)
    models = tuple(given.models.split(","))
    if unknown := [model for model in models if model not in SHAPES]:
        parser.error(f"--models: {', '.join(unknown)}: choose of {', '.join(SHAPES)}")
    workloads = tuple(one for one in WORKLOADS if (given.only or "") in one.name)
    if not workloads:
        parser.error(f"--only {given.only}: the workloads are {', '.join(one.name for one in WORKLOADS)}")
    return SpeedPlan(models, given.threads, given.rounds, given.tree, workloads), given.json


def main(argv: list[str] | None = None) -> int:
    """The command."""
    plan, wants_json = _parse(argv)
    before = os.getloadavg()[0]
    found = run(plan)
    wrong, load = failures(plan, found), (before, os.getloadavg()[0])
    print(as_json(plan, found, wrong, load)) if wants_json else show(plan, found, wrong, load)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
