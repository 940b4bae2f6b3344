"""How a contestant's turn is measured."""

from benchmarks.engine.contestants.serve import measure
from benchmarks.engine.workloads import Turn


class Counting:
    """Counts its runs."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run(self, name: str) -> list[int]:
        self.names.append(name)
        return [len(self.names)]


def test_one_run_at_least() -> None:
    contestant = Counting()
    result = measure(contestant, Turn("w", 0.0))
    assert (contestant.names, result.runs, result.first_tokens) == (["w"], 1, [1])
    assert result.seconds > 0


def test_whole_runs_until_the_time_is_over() -> None:
    contestant = Counting()
    result = measure(contestant, Turn("w", 0.01))
    assert result.runs == len(contestant.names) > 1
    assert result.seconds >= 0.01
    assert result.run_s == result.seconds / result.runs
