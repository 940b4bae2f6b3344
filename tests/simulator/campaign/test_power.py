"""How many trials a planted bug takes: what breaks an invariant counts where nothing breaks without the bug."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from simulator.campaign.outcome import TrialOutcome
from simulator.campaign.runner import plan_of
from simulator.campaign.violation import Violation
from tests.zoo.hunt import names
from tests.zoo.plant import Bug, planted
from tests.zoo.power import UNSEEN, Power, Trial, main, power_of, sampled, searched, summary

NOTHING = Bug("nothing", "", ("I1",), ())
EMPTY = replace(plan_of(3).only(frozenset(), frozenset()), jobs=())


def breaking_at(*numbers: int) -> Iterator[Trial]:
    """Trials of a plan that breaks nothing, of which those of these numbers are said to have broken I8."""
    for number in range(1, 100):
        yield EMPTY, TrialOutcome(number, Violation("I8", 1.0, "two owners") if number in numbers else None)


def test_a_bug_takes_as_many_trials_as_came_until_an_invariant_broke() -> None:
    assert power_of(NOTHING, lambda bug, first: breaking_at(3), 0, 5) == Power(
        "nothing", 3, "seed 3: I8 at 1.000000 s: two owners"
    )
    assert power_of(NOTHING, lambda bug, first: breaking_at(6), 0, 5) == Power("nothing", None)


def test_what_breaks_without_the_bug_too_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = TrialOutcome(1, Violation("I1", 0.5, "twice"))
    monkeypatch.setattr("tests.zoo.power.CampaignTrial", lambda plan: type("Run", (), {"run": lambda self: broken})())
    power = power_of(NOTHING, lambda bug, first: breaking_at(1), 0, 2)
    assert (power.trials, power.by) == (None, "seed 1, without the bug too: I1 at 0.500000 s: twice")


def test_both_ways_begin_at_the_first_seed() -> None:
    for sampler in (sampled, searched):
        ((plan, outcome),) = islice(sampler(NOTHING, 95), 1)
        assert (plan.seed, outcome.seed) == (95, 95)


def test_the_summary_counts_what_was_not_caught_as_one_more_than_the_bound() -> None:
    found = [Power("a", 1), Power("b", 60), Power("c", None)]
    assert summary(found, 200) == "3 bugs: median 60, 1 within 50, 2 within 200"
    assert summary(found[:1] + found[2:], 20) == "2 bugs: median 11, 1 within 50, 1 within 20"
    assert str(found[2]) == "c: not caught; "


def test_the_command_measures_the_bugs_that_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["span-off-by-one", "--most", "1"]) == 0
    one, last = capsys.readouterr().out.splitlines()
    assert one.startswith("span-off-by-one: ")
    assert last.startswith("1 bugs: median ")


@pytest.mark.parametrize("bug", UNSEEN, ids=lambda bug: bug.name)
def test_an_unseen_bug_can_be_planted(bug: Bug) -> None:
    with planted(bug):
        pass
    assert bug.name not in names()
