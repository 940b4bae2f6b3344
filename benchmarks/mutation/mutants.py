"""Change the code in small ways, one at a time, and see whether a test notices (`make mutants`).

    python -m benchmarks.mutation.mutants --minutes 60                        every area, for an hour altogether
    python -m benchmarks.mutation.mutants --minutes 10 --areas ledger arena   these alone

Results are retained in `.mutants/`, so another run goes on with mutants that were not tried; `--fresh` forgets them.
The list of survivors is printed, or written by `--report FILE`. Each area's tests run once without a change first, to
know how long each takes.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness.processes import ROOT
from benchmarks.harness.report import say
from benchmarks.mutation.areas import AREAS
from benchmarks.mutation.results import Results, as_markdown

RESULTS = ROOT / ".mutants" / "results.jsonl"
LEFT_OUT = (".venv", ".git", ".mutants", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache", "__pycache__")


def sample(areas: list[str], minutes: float, seed: int, most: int, results: Path) -> list[str]:
    """Try mutants of each area for an equal share of the time that is left; returns the areas whose tests fail as they
    are.
    """
    until_s, failed = time.monotonic() + 60 * minutes, []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for at, area in enumerate(areas):
            left_s = max(0.0, until_s - time.monotonic()) / (len(areas) - at)
            say(f"{area}: {left_s / 60:.1f} minutes")
            if _run_session(copy, area, results, seed, left_s, most):
                failed.append(area)
    return failed


def _run_session(copy: Path, area: str, results: Path, seed: int, seconds: float, most: int) -> int:
    own = {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    words = [area, str(results), str(seed), str(seconds), str(most)]
    command = [sys.executable, "-m", "benchmarks.mutation.session", *words]
    return subprocess.run(command, cwd=copy, env={**os.environ, **own}, stdout=sys.stderr, check=False).returncode


def main(argv: list[str] | None = None) -> int:
    """The command; exit code 1 if the tests of an area fail without any change."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--minutes", type=float, default=60, help="for all areas together (default: 60)")
    made.add_argument("--areas", nargs="+", choices=tuple(AREAS), default=list(AREAS), help="default: all")
    made.add_argument("--seed", type=int, default=1, help="another order of the mutants (default: 1)")
    made.add_argument("--most", type=int, default=1 << 30, help="mutants of each area, earlier ones counted")
    made.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    made.add_argument("--report", type=Path, help="write the table and the survivors there (Markdown)")
    given = made.parse_args(argv)
    RESULTS.parent.mkdir(exist_ok=True)
    if given.fresh:
        RESULTS.unlink(missing_ok=True)
    failed = sample(given.areas, given.minutes, given.seed, given.most, RESULTS)
    text = as_markdown(Results(RESULTS))
    if given.report is not None:
        given.report.write_text(text)
    print(text)
    for area in failed:
        say(f"{area}: its tests fail without any change")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
