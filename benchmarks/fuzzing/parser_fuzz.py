"""Fuzz every parser that bytes from outside reach, guided by coverage: no crash, no leak.

    python -m benchmarks.fuzzing.parser_fuzz --seconds 600                       every parser, one after the other
    python -m benchmarks.fuzzing.parser_fuzz --seconds 60 --parsers wire trace

Needs the extra `fuzz`. Each parser runs in a process of its own, started with what it is known to accept. A leak
is resident memory that still grows between the first and the last quarter of the run.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import report
from benchmarks.harness.processes import ROOT, resident_bytes
from benchmarks.harness.report import BenchmarkResult, say

LEAK_BYTES = 48 << 20
SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class FuzzVerdict:
    """What one run found. `growth_bytes`: last quarter's median resident memory less the first's."""

    executions: int
    coverage: int
    growth_bytes: int
    crash: str


def fuzz(name: str, seconds: int) -> FuzzVerdict:
    """Run the fuzzer on one parser; watch its memory."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "said").open("w+") as said:
        command = [sys.executable, "-m", "benchmarks.fuzzing.fuzz_child", name, str(seconds), folder]
        child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        resident = []
        while child.poll() is None:
            time.sleep(SAMPLE_S)
            resident.append(resident_bytes(child.pid, "VmRSS"))
        text = Path(said.name).read_text(errors="replace")
    return judge(child.returncode, text, [size for size in resident if size])


def judge(code: int, said: str, resident: list[int]) -> FuzzVerdict:
    """The verdict on what libFuzzer said. Pure."""
    executions = re.search(r"number_of_executed_units:\s*(\d+)", said)
    covered = re.findall(r"\bcov: (\d+)", said)
    quarter = len(resident) // 4
    first, last = resident[quarter : 2 * quarter], resident[-quarter:]
    growth = statistics.median_high(last) - statistics.median_high(first) if quarter else 0
    crash = "" if code == 0 else f"exit code {code}: {_last_words(said)}"
    return FuzzVerdict(int(executions[1]) if executions else 0, int(covered[-1]) if covered else 0, growth, crash)


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return " / ".join((errors or lines)[-3:])[:600]


def run(names: list[str], seconds: int) -> BenchmarkResult:
    """Every parser in turn."""
    outcome = BenchmarkResult(f"fuzzing: {seconds} s a parser")
    for name in names:
        verdict = fuzz(name, seconds)
        say(f"{name}: {verdict}")
        outcome.figures[f"{name}: inputs, branches covered, growth (MiB)"] = (
            verdict.executions,
            verdict.coverage,
            verdict.growth_bytes / (1 << 20),
        )
        outcome.expect(not verdict.crash, f"{name}: {verdict.crash}")
        outcome.expect(verdict.executions > 0, f"{name}: nothing was tried")
        outcome.expect(verdict.growth_bytes < LEAK_BYTES, f"{name}: grew by {verdict.growth_bytes >> 20} MiB")
    return outcome


def main(argv: list[str] | None = None) -> int:
    """The command."""
    from benchmarks.fuzzing.parsers import PARSERS

    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--seconds", type=int, default=600, help="for each parser")
    arguments.add_argument("--parsers", nargs="+", choices=tuple(PARSERS), default=list(PARSERS))
    given = arguments.parse_args(argv)
    return report.finish(run(given.parsers, given.seconds), given.json)


if __name__ == "__main__":
    sys.exit(main())
