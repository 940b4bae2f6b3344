"""Random orders of every kind to two engine processes, and whether everything is accounted for after each round.

    python -m benchmarks.engine.soak --minutes 60 --seed 1

Steps of prompts in chunks and of decode rows, interrupts of both verdicts, resumes, discards, drops and restores of
layers from every source, copies to the host tier and back, moves between the engines, steps that are sent on while they
compute, rings with `keep` and masters, closes and cancels. Each command must have its one answer, each token be that of
an undisturbed engine, and after each round all slots, granules, rooms and regions be in their place. Memory is printed
every minute; a violation, or memory that grows, is the exit code 1.
"""

import sys
import time

from benchmarks.engine.soak.engine_child import SoakError
from benchmarks.engine.soak.memory_log import MemoryLog
from benchmarks.engine.soak.soak import ORDERS_A_ROUND, EngineSoak, SoakPlan
from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult, say

PRINT_S = 60.0


def run(plan: SoakPlan, print_s: float = PRINT_S) -> BenchmarkResult:
    """The rounds, up to the first that breaks something."""
    outcome = BenchmarkResult(f"soak: random orders to two engines, seed {plan.seed}")
    with EngineSoak(plan) as soak:
        logs = {name: MemoryLog(name) for name in soak.memory()}
        began_s = time.monotonic()
        try:
            _rounds(soak, logs, began_s, print_s, outcome)
        except (SoakError, AssertionError) as error:
            outcome.failures.append(f"round {soak.rounds + 1}: {error}")
        outcome.figures["minutes"] = (time.monotonic() - began_s) / 60
        outcome.figures["rounds"] = soak.rounds
        outcome.figures.update(sorted(soak.counts().items()))
    for log in logs.values():
        outcome.figures[f"{log.name}: own and shared memory at the end, MiB"] = (
            log.samples[-1][1].anonymous_mib, log.samples[-1][1].shared_mib,
        )  # fmt: skip
        outcome.figures[f"{log.name}: slopes of both, MiB an hour"] = log.slopes()
        outcome.figures[f"{log.name}: descriptors"] = log.samples[-1][1].descriptors
        outcome.failures += log.violations()
    return outcome


def _rounds(
    soak: EngineSoak, logs: dict[str, MemoryLog], began_s: float, print_s: float, outcome: BenchmarkResult
) -> None:
    plan, printed_s = soak.plan, -print_s
    while not outcome.failures:
        passed_s = time.monotonic() - began_s
        if passed_s - printed_s >= print_s:
            printed_s = passed_s
            _sample(soak, logs, passed_s / 60)
        if soak.rounds >= plan.rounds if plan.rounds else passed_s >= 60 * plan.minutes:
            return
        outcome.failures += [f"round {soak.rounds}: {text}" for text in soak.run_round()]


def _sample(soak: EngineSoak, logs: dict[str, MemoryLog], minute: float) -> None:
    parts = []
    for name, memory in soak.memory().items():
        logs[name].add(minute, memory)
        parts.append(f"{name} {memory.anonymous_mib:.1f} + {memory.shared_mib:.1f} MiB, {memory.descriptors} fds")
    done = soak.counts()
    say(f"minute {minute:5.1f}: round {soak.rounds}, {done['tokens compared']} tokens compared; {'; '.join(parts)}")


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--minutes", type=float, default=60.0)
    arguments.add_argument("--rounds", type=int, default=0, help="instead of --minutes")
    arguments.add_argument("--orders", type=int, default=ORDERS_A_ROUND, help="of a round")
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args(argv)
    outcome = run(SoakPlan(given.seed, given.minutes, given.rounds, given.orders))
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
