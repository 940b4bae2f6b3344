"""The mutants of one area in one pytest session.

    python -m benchmarks.mutation.session AREA RESULTS SEED SECONDS MOST

Runs in a copy of the tree: each mutant is written into its file, too, for processes that tests start. To collect once
and to fork for each mutant takes a fraction of a second where the tests that notice it are fast.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import hypothesis
import pytest

from benchmarks.mutation.areas import AREAS, Area
from benchmarks.mutation.draw import Mutant, draw, is_program
from benchmarks.mutation.patch import patch_module
from benchmarks.mutation.results import Results, SampledMutant
from benchmarks.mutation.trial import TestRun, judge, measure


class MutationSession:
    """The plugin that runs mutants in place of the tests. `most`: mutants of the area altogether, earlier ones too."""

    def __init__(self, name: str, area: Area, results: Results, seed: int, seconds: float, most: int) -> None:
        self.failure = ""
        self._name = name
        self._area = area
        self._results = results
        self._seed = seed
        self._until_s = time.monotonic() + seconds
        self._most = most
        self._run = TestRun()

    @pytest.hookimpl
    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self._run)

    @pytest.hookimpl
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        try:
            known_s = measure(session, self._run)
        except RuntimeError as error:
            self.failure = str(error)
            return True
        session.items.sort(key=lambda item: known_s.get(item.nodeid, 0.0))
        root = Path(session.config.rootpath)
        for mutant in self._left(root):
            if time.monotonic() >= self._until_s:
                break
            self._results.add(self._try(session, root, mutant, known_s))
        return True

    def _left(self, root: Path) -> Iterator[Mutant]:
        known = self._results.names(self._name)
        drawn = (each for each in draw(root, self._area.files, self._seed) if each.name not in known)
        programs = (each for each in drawn if is_program(each.apply((root / each.file).read_bytes())))
        yield from islice(programs, max(0, self._most - len(known)))

    def _try(self, session: pytest.Session, root: Path, mutant: Mutant, known_s: dict[str, float]) -> SampledMutant:
        path = root / mutant.file
        original = path.read_bytes()
        changed = mutant.apply(original)
        path.write_bytes(changed)
        try:
            verdict = judge(session, self._run, known_s, lambda: patch_module(mutant.file, changed))
        finally:
            path.write_bytes(original)
        return SampledMutant(self._name, mutant.name, str(mutant), verdict.outcome, verdict.by, verdict.cpu_s)


def main() -> int:
    """The command; exit code 1 if the tests fail without any change."""
    name, results, seed, seconds, most = sys.argv[1:]
    area = AREAS[name]
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # a smaller example is of no use here
    hypothesis.settings.register_profile("mutants", phases=phases, derandomize=True, database=None, deadline=None)
    plugin = MutationSession(name, area, Results(Path(results)), int(seed), float(seconds), int(most))
    sys.path.insert(0, os.getcwd())
    options = ["-q", "-s", "-p", "no:cacheprovider", "--timeout", "0", "--hypothesis-profile=mutants"]
    pytest.main([*options, "--rootdir", os.getcwd(), *area.tests], plugins=[plugin])
    if plugin.failure:
        print(json.dumps(plugin.failure), file=sys.stderr)
    return int(bool(plugin.failure))


if __name__ == "__main__":
    sys.exit(main())
