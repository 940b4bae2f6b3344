"""What became of the mutants so far: one line of JSON each, so that a later run goes on where an earlier one ended."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.mutation.trial import Outcome

NOTICED = (Outcome.CAUGHT, Outcome.ENDLESS)


@dataclass(frozen=True, slots=True)
class SampledMutant:
    """`place` says the mutant as a reader finds it; `name` is the same while its code is."""

    area: str
    name: str
    place: str
    outcome: Outcome
    by: str
    cpu_s: float


class Results:
    """Owns the file of results."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        self.all = [SampledMutant(**{**each, "outcome": Outcome(each["outcome"])}) for each in found]

    def names(self, area: str) -> set[str]:
        """Mutants of an area that were tried."""
        return {each.name for each in self.all if each.area == area}

    def add(self, mutant: SampledMutant) -> None:
        """Retain a result, on disk at once."""
        self.all.append(mutant)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(mutant)) + "\n")


def rows(results: Results) -> list[tuple[str, int, int, str]]:
    """(area, mutants, caught, share) of each area and of all. Mutants that changed no loaded code do not count."""
    counted = [each for each in results.all if each.outcome is not Outcome.UNAPPLIED]
    tried = Counter(each.area for each in counted)
    caught = Counter(each.area for each in counted if each.outcome in NOTICED)
    found = [(area, tried[area], caught[area], _share(caught[area], tried[area])) for area in sorted(tried)]
    return [*found, ("all", tried.total(), caught.total(), _share(caught.total(), tried.total()))]


def survivors(results: Results) -> list[SampledMutant]:
    """Those that no test noticed, by place."""
    return sorted((each for each in results.all if each.outcome is Outcome.SURVIVED), key=lambda each: each.place)


def as_markdown(results: Results) -> str:
    """The table and the list."""
    table = ["| area | mutants | caught | share |", "|---|---|---|---|"]
    table += [f"| {area} | {tried} | {caught} | {share} |" for area, tried, caught, share in rows(results)]
    listed = [f"- {each.area}: `{each.place}`" for each in survivors(results)]
    return "\n".join(["# Mutants", "", *table, "", f"## Survivors ({len(listed)})", "", *listed, ""])


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"
