"""Search the property tests and state machines with fresh random examples, round after round (`make fuzz`).

    python -m benchmarks.fuzzing.properties --minutes 10                              every test that uses hypothesis
    python -m benchmarks.fuzzing.properties --minutes 10 tests/services/kvstore       those there

`make test` tries the same examples every time; this is where new ones come from. Each round runs all of them once, with
a seed of its own, in a process of its own. A test that failed is left out of the rounds that follow; the command that
repeats it is printed with it and again at the end. Needs the extra `dev` (`make install` brings it). The parsers that
bytes from outside reach have a fuzzer of their own, `benchmarks.fuzzing.parser_fuzz`.
"""

import argparse
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.report import BenchmarkResult, finish, say

SEED_BITS = 32
TESTS_FAILED = 1
"""Exit code of pytest."""
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "--hypothesis-profile=fuzz")
WIDE = {"COLUMNS": "400"}  # pytest shortens its summary to the width of the terminal


@dataclass(frozen=True, slots=True)
class SearchRound:
    """What one run of pytest said: how many examples held, in how many tests, and which tests failed."""

    examples: int
    passed: int
    failed: tuple[str, ...]


@dataclass(slots=True)
class PropertySearch:
    """All rounds so far. `failed`: by test, the command that repeats its failure. `tests`: the most in one round."""

    rounds: int = 0
    examples: int = 0
    tests: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def add(self, done: SearchRound, seed: int) -> None:
        """Count a round; note how to repeat what failed in it."""
        self.rounds += 1
        self.examples += done.examples
        self.tests = max(self.tests, done.passed + len(done.failed) + len(self.failed))
        for test in done.failed:
            self.failed[test] = replay(seed, test)


def replay(seed: int, test: str) -> str:
    """The command that tries the same examples again. Hash seed included: a test may go through a set."""
    python = Path(sys.executable)
    shown = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    words = [str(shown), *PYTEST, f"--hypothesis-seed={seed}", test]
    return f"PYTHONHASHSEED={seed} {shlex.join(words)}"


def read(said: str) -> SearchRound:
    """What pytest printed with `--hypothesis-show-statistics -rfE`. Pure."""
    passing = re.findall(r"- (\d+) passing\b", said)
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    passed = re.search(r"^=*\s*(?:.*, )?(\d+) passed\b", said, re.MULTILINE)
    return SearchRound(sum(map(int, passing)), int(passed[1]) if passed else 0, tuple(dict.fromkeys(failed)))


def ask_pytest(arguments: list[str], seed: int = 0) -> tuple[int, str]:
    """Run pytest here; its exit code and what it said."""
    environment = {**os.environ, **WIDE, "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, *PYTEST, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False)
    return done.returncode, done.stdout.decode(errors="replace")


def files_with_properties(tests: list[str]) -> list[str]:
    """The files under `tests` with tests that use hypothesis. Raises RuntimeError if there is none."""
    code, said = ask_pytest(["--collect-only", "-q", "-m", "hypothesis", *tests])
    found = re.findall(r"^(.+?\.py)::", said, re.MULTILINE)
    if code or not found:
        raise RuntimeError(f"no test that uses hypothesis in {' '.join(tests)}; pytest said:\n{said[-2000:]}")
    return list(dict.fromkeys(found))


def search(tests: list[str], minutes: float, rounds: int = 1) -> PropertySearch:
    """Rounds until the time is over, but at least `rounds`; then the test that is under way is the last."""
    until_s = time.monotonic() + 60 * minutes
    files, found = files_with_properties(tests), PropertySearch()
    while True:
        seed, left_s = secrets.randbits(SEED_BITS), until_s - time.monotonic()
        options = ["-q", "-rfE", "-m", "hypothesis", "--hypothesis-show-statistics", f"--hypothesis-seed={seed}"]
        options += [f"--deselect={test}" for test in found.failed]
        options += [f"--session-timeout={left_s:.0f}"] if left_s >= 1 and found.rounds >= rounds - 1 else []
        code, said = ask_pytest([*options, *files], seed)
        done = read(said)
        found.add(done, seed)
        _tell(found, done, code, said)
        is_over = found.rounds >= rounds and time.monotonic() >= until_s
        if found.broken or not done.passed or is_over:
            return found


def _tell(found: PropertySearch, done: SearchRound, code: int, said: str) -> None:
    """What came of a round, and all that pytest said if it was anything but well."""
    if code > TESTS_FAILED:
        found.broken.append(f"pytest ended with exit code {code} in round {found.rounds}")
    if code > TESTS_FAILED or done.failed:
        say(said)
    say(f"round {found.rounds}: {done.examples} examples of {done.passed} tests held, {len(done.failed)} tests failed")
    for test in done.failed:
        say(f"  replay: {found.failed[test]}")


def run(tests: list[str], minutes: float, rounds: int) -> BenchmarkResult:
    """The search as a table."""
    started_s = time.monotonic()
    found = search(tests, minutes, rounds)
    outcome = BenchmarkResult("random search of the property tests")
    outcome.figures |= {
        "rounds": found.rounds,
        "tests": found.tests,
        "examples that held": found.examples,
        "tests that failed": len(found.failed),
        "minutes": (time.monotonic() - started_s) / 60,
    }
    outcome.failures += found.broken
    for test, command in found.failed.items():
        outcome.expect(False, f"{test}\n    replay: {command}")
    return outcome


def main(argv: list[str] | None = None) -> int:
    """The command."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("tests", nargs="*", default=["tests"], help="files, folders or ids of tests (default: tests)")
    made.add_argument("--minutes", type=float, default=10, help="how long to search (default: 10)")
    made.add_argument("--rounds", type=int, default=1, help="at least this many, however long they take (default: 1)")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = made.parse_args(argv)
    return finish(run(given.tests, given.minutes, given.rounds), given.json)


if __name__ == "__main__":
    sys.exit(main())
