"""ConServe's experiments (6.3 and 6.4) in the twin: chat beside batch work on one A100 with 40 GB and Llama-2-7B.

Online requests are of 1,024 tokens in and 128 out, as in the paper; the batch work is synthetic LongBench (means of the
published lengths, cut to the 4,096 positions of the model) and never ends. Rates count what is computed within the
horizon: prompts of batch requests that got a first token, and all their generated tokens. Everything is virtual time:
the result is the same on any machine.

    python -m benchmarks.papers.conserve [--horizon 300] [--seed 0] [--figure ladder,rate,cv,phases]
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.workload_spec import read_workload
from simulator.study.run_case import run_case
from simulator.study.sweep import Case

SLOTS_40_GB = 42_900
"""Tokens of KV beside the weights: (0.9 x 40 GB - 13.5 GB) / 512 KiB."""
POSITIONS = 4096
TTFT_S, TPOT_S = 1.5, 0.11
ONLINE = "lengths=fixed(1024,128),class=chat"
BATCH_PER_S = 1.5
"""Batch requests that are waiting at the start, per second of the horizon: more than any system can finish."""

NO_CHECKPOINTS = (("instance.checkpoint.engine_share", 0.0), ("instance.preemption.mode", "recompute"))


@dataclass(frozen=True, slots=True)
class System:
    """A column: a preset with settings of its own."""

    name: str
    preset: str
    settings: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    """A row of a figure: the online load, the systems under it, and what the paper prints of each."""

    figure: str
    title: str
    online: str
    systems: Sequence[System]
    paper: dict[str, str] = field(default_factory=dict)


ONLINE_ONLY, VLLM = System("online_only", "online_only"), System("vllm++", "vllm++")
CONSERVE, UNIFIED = System("conserve", "conserve"), System("unified", "unified")
ALL = (ONLINE_ONLY, VLLM, CONSERVE, UNIFIED)
LADDER = (
    ONLINE_ONLY,
    VLLM,
    System("+ scheduler", "conserve", NO_CHECKPOINTS),
    System("+ checkpoints", "conserve"),
    System("unified", "unified"),
)


def scenes(horizon_s: float) -> Iterator[Scene]:
    """All rows, figure by figure."""
    gamma = f"gamma:rate={{rate:g}},cv={{cv:g}},duration={horizon_s:g},{ONLINE}"
    ladder = {
        "online_only": "TTFT p99 354 ms (446 is within 26 % of it)",
        "vllm++": "TTFT p99 1,346 ms, 3,674 tokens/s offline",
        "+ scheduler": "446 ms, 2,951 tokens/s",
        "+ checkpoints": "with prefetch 317 ms (-76.5 %), 3,818 tokens/s",
    }
    yield Scene("ladder", "Fig. 8: rate 2, CV 1", gamma.format(rate=2, cv=1), LADDER, ladder)
    for rate in (1, 2, 3):
        paper = {"conserve": "TTFT p99 within 25 % of online_only", "vllm++": "TTFT p99 at least 4,980 ms"}
        yield Scene("rate", f"Fig. 7: rate {rate}, CV 1", gamma.format(rate=rate, cv=1), ALL, paper)
    for cv in (2, 4):
        paper = {"conserve": "TTFT p99 within 25 % of online_only"}
        yield Scene("cv", f"Fig. 7: rate 2, CV {cv}", gamma.format(rate=2, cv=cv), ALL, paper)
    third = horizon_s / 3
    phases = f"onoff:on=4,off=0.001,on_s={third:g},off_s={third:g},duration={horizon_s:g},{ONLINE}"
    paper = {
        "conserve": "TTFT p99 under 350 ms, TPOT p99 under 90 ms; 5,868 tokens/s offline while off",
        "vllm++": "TTFT and TPOT p99 1.4 to 11 times as high",
    }
    yield Scene("phases", "Fig. 6: on, off, on", phases, ALL, paper)


@dataclass(frozen=True, slots=True)
class Row:
    """One system in one scene; times in ms, rates in tokens per second of the horizon."""

    ttft_p50: float
    ttft_p99: float
    tpot_p99: float
    online: float
    offline: float
    unanswered: int

    @property
    def total(self) -> float:
        """All tokens."""
        return self.online + self.offline


def run(scene: Scene, system: System, horizon_s: float, seed: int, ideal: Row | None) -> Row:
    """Simulate one system, with the p99 of `ideal` (online requests alone) as its objectives, as the paper does."""
    batch = f"gamma:rate=10000,cv=1,requests={round(BATCH_PER_S * horizon_s)},lengths=longbench,class=batch"
    settings = (("instance.kv_cache.max_slots", SLOTS_40_GB), ("dispatcher.admission.max_wait_s", 3600.0))
    aims = (TTFT_S, TPOT_S) if ideal is None else (1e-3 * ideal.ttft_p99, 1e-3 * ideal.tpot_p99)
    objectives = tuple(zip(("instance.objectives.ttft_s", "instance.objectives.tpot_s"), aims, strict=True))
    case = Case(
        system.preset,
        1,
        "a100",
        "llama-2-7b",
        seed=seed,
        max_positions=POSITIONS,
        settings=(*settings, *objectives, *system.settings),
    )
    outcome = run_case(case, read_workload(f"{scene.online} + {batch}", seed=seed))
    chat = [record for record in outcome.records if record.label == "chat"]
    offline = [record for record in outcome.records if record.label == "batch"]
    ttft_s = [record.token_s[0] - record.at_s if record.token_s else float("inf") for record in chat]
    gaps_s = [late - early for record in chat for early, late in zip(record.token_s, record.token_s[1:], strict=False)]
    return Row(
        1e3 * percentile(ttft_s, 50),
        1e3 * percentile(ttft_s, 99),
        1e3 * percentile(gaps_s, 99),
        tokens_within(chat, horizon_s) / horizon_s,
        tokens_within(offline, horizon_s) / horizon_s,
        sum(not record.token_s for record in chat),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share / 100))] if ordered else 0.0


def tokens_within(records: Sequence[RequestRecord], horizon_s: float) -> int:
    """Prompt and generated tokens computed by then; a prompt counts with its first token."""
    total = 0
    for record in records:
        came = sum(at_s <= horizon_s for at_s in record.token_s)
        total += came + (record.input_tokens if came else 0)
    return total


def show(scene: Scene, rows: dict[str, Row]) -> None:
    """Print one scene's table."""
    print(f"\n{scene.title}")
    print(
        f"{'':14}{'TTFT p50':>10}{'p99 ms':>9}{'TPOT p99':>10}{'online':>9}{'offline':>9}{'total':>8}  tokens/s; paper"
    )
    ideal = rows.get("online_only")
    for name, row in rows.items():
        times = f"{row.ttft_p50:10.0f}{row.ttft_p99:9.0f}{row.tpot_p99:10.1f}"
        rates = f"{row.online:9.0f}{row.offline:9.0f}{row.total:8.0f}"
        late = f" ({row.ttft_p99 / ideal.ttft_p99 - 1:+.0%} TTFT)" if ideal is not None and row is not ideal else ""
        lost = f" {row.unanswered} without a token" if row.unanswered else ""
        print(f"{name:14}{times}{rates}{late}{lost}  {scene.paper.get(name, '')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the figures that were asked for."""
    flags = argparse.ArgumentParser(prog="python -m benchmarks.papers.conserve", description=__doc__)
    flags.add_argument("--horizon", type=float, default=300.0, metavar="S", help="virtual seconds of load")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--figure", default="ladder,rate,cv,phases", help="which, by comma")
    arguments = flags.parse_args(argv)
    wanted = arguments.figure.split(",")
    print(f"A100 with 40 GB, Llama-2-7B, {arguments.horizon:g} s, seed {arguments.seed}; batch lengths are synthetic")
    for scene in scenes(arguments.horizon):
        if scene.figure not in wanted:
            continue
        rows: dict[str, Row] = {}
        for system in scene.systems:
            ideal = rows.get(ONLINE_ONLY.name)
            rows[system.name] = run(scene, system, arguments.horizon, arguments.seed, ideal)
        show(scene, rows)
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
