"""A search is the same with any number of processes, replays by name, and finds a planted bug."""

from collections.abc import Iterable
from itertools import islice

import pytest

from cli.main import main
from simulator.campaign.outcome import TrialOutcome
from simulator.campaign.plans import TrialPlan
from simulator.campaign.runner import FailingSeed
from simulator.campaign.search.features import RunFeatures
from simulator.campaign.search.search import (
    ROUND,
    PlanSearch,
    SearchedRun,
    replay_plan,
    run_named,
    search_plans,
    search_rounds,
)
from simulator.campaign.violation import Violation
from tests.zoo.hunt import BUGS
from tests.zoo.plant import planted

FIRST_SEED = 95
LEAKED = next(bug for bug in BUGS if bug.name == "leaked-slots")


def pretended(plans: Iterable[TrialPlan]) -> Iterable[SearchedRun]:
    """Runs that cover as many features as their plan has requests, and break an invariant where that is 8."""
    for plan in plans:
        coverage = RunFeatures()
        coverage.found = {hash((plan.seed, number)) for number in range(len(plan.requests))}
        violation = Violation("I1", 0.0, "") if len(plan.requests) == 8 else None
        yield SearchedRun(plan, TrialOutcome(plan.seed, violation, name=plan.name), coverage)


def test_the_first_round_is_fresh_and_later_ones_mutate_what_covered_something_new() -> None:
    runs = list(islice(search_rounds(PlanSearch(FIRST_SEED), pretended), 4 * ROUND))
    assert [run.plan.name for run in runs[:ROUND]] == [str(FIRST_SEED + index) for index in range(ROUND)]
    fresh = [int(run.plan.name) for run in runs if "." not in run.plan.name]
    assert fresh == [*range(FIRST_SEED, FIRST_SEED + len(fresh))]
    mutations = [run.plan.name for run in runs if "." in run.plan.name]
    assert len(mutations) > ROUND
    assert len(set(mutations)) == len(mutations)
    failed = {run.plan.name for run in runs if run.outcome.violation is not None}
    assert not any(name.rsplit(".", 1)[0] in failed for name in mutations)


def test_the_names_of_a_search_follow_from_its_first_seed() -> None:
    def names(first_seed: int) -> list[str]:
        return [run.plan.name for run in islice(search_rounds(PlanSearch(first_seed), pretended), 3 * ROUND)]

    assert names(7) == names(7)
    assert names(7)[ROUND:] != [str(int(name.split(".")[0]) - 1) for name in names(8)[ROUND:]]


def test_several_processes_run_the_same_search_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds: what the first one covered decides the second."""
    monkeypatch.setattr("simulator.campaign.search.search.ROUND", 2)
    monkeypatch.setattr("simulator.campaign.search.search.FRESH_SHARE", 0.0)
    alone, shared = (search_plans(FIRST_SEED, 3, jobs=jobs) for jobs in (1, 2))
    assert (alone.digest, alone.events, alone.seeds) == (shared.digest, shared.events, 3)
    assert alone.digest != search_plans(FIRST_SEED, 2).digest
    assert [str(found.outcome.violation) for found in alone.found] == []


def test_a_few_plans_find_a_planted_bug_and_its_name_replays_and_shrinks_it() -> None:
    with planted(LEAKED):
        summary = search_plans(FIRST_SEED, 2, shrink_runs=4)
        found = summary.found[0]
        name = found.plan.name
        again = run_named(name).outcome
        assert (again.digest, str(again.violation)) == (found.outcome.digest, str(found.outcome.violation))
        assert found.smallest is not None
        assert len(found.smallest.faults) < len(found.plan.faults)
        part = (
            frozenset(ask.number for ask in found.smallest.requests),
            frozenset(one.number for one in found.smallest.faults),
        )
        (smaller,) = replay_plan(name, *part, shrink_runs=0).found
        assert smaller.plan == found.smallest
    assert replay_plan(name, None, None, 0).found == []


def test_what_a_search_finds_names_the_commands_that_show_it_again() -> None:
    run = run_named("95.1")
    found = FailingSeed(run.outcome, run.plan, run.plan.subset(frozenset({4}), frozenset({0, 2})))
    assert found.outcome.label == "plan 95.1"
    assert found.replay() == "dunlin sim --campaign --plan 95.1"
    assert found.replay_smallest() == f"{found.replay()} --only-requests '4' --only-faults '0,2'"


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--campaign", "--search", "--seeds", "1", "--first-seed", "95"]) == 0
    searched = capsys.readouterr().out.splitlines()[-1]
    assert main(["sim", "--campaign", "--plan", "95"]) == 0
    replayed = capsys.readouterr().out.splitlines()[-1]
    assert searched == replayed
    assert searched.startswith("1 seeds, ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--search", "--preset", "elastic"], "a search draws its presets"),
        (["--search", "--only-faults", "1"], "name it by --plan"),
        (["--plan", "7.x"], "a name as 7 or 7.1.3 is needed"),
    ],
)
def test_what_a_search_cannot_do_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--campaign", *words]) == 2
    assert said in capsys.readouterr().err
