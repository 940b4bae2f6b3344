"""Campaigns: a few seeds hold, replay exactly, and a broken invariant is found, shrunk and told."""

import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from cli.main import main
from services.instance.core import InstanceCore
from simulator.campaign.coverage import Coverage
from simulator.campaign.faults.catalog import fault_kinds
from simulator.campaign.outcome import TrialOutcome
from simulator.campaign.plans import Fault, TrialPlan
from simulator.campaign.runner import CampaignSummary, FailingSeed, plan_of, restless_part, run_campaign, run_seed
from simulator.campaign.trial import CampaignTrial
from simulator.campaign.violation import Violation

SEEDS = 8


def test_a_small_campaign_finds_nothing() -> None:
    summary = run_campaign(range(SEEDS))
    assert [str(found.outcome.violation) for found in summary.found] == []
    assert summary.seeds == SEEDS
    assert set(summary.done) <= {*fault_kinds(), "bite"}
    assert summary.done.total() > 3 * SEEDS / 2
    assert summary.ends["length"] > 10 * SEEDS


def test_a_seed_replays_exactly_whatever_strings_hash_to() -> None:
    script = (
        "from simulator.campaign.runner import run_seed\n"
        "outcome = run_seed(3)[0]\n"
        "print(outcome.digest, outcome.events, outcome.simulated_s)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    outcome, _ = run_seed(3)
    assert said == {f"{outcome.digest} {outcome.events} {outcome.simulated_s}\n"}


def test_a_fault_that_takes_aim_strikes_a_process_in_that_phase() -> None:
    base = plan_of(3)
    aimed = Fault(0, 0.0, "crash_engine", 0.0, 0.0, 0.1, 0.0, aim="computing")
    coverage = Coverage()
    outcome = CampaignTrial(replace(base, faults=(aimed,)), coverage).run()
    assert (outcome.violation, coverage.faults) == (None, Counter({("crash_engine", "instance computing"): 1}))


def test_a_part_of_a_plan_runs() -> None:
    plan = plan_of(0)
    part = plan.subset(frozenset({1, 2}), frozenset())
    outcome = CampaignTrial(part).run()
    assert (outcome.violation, outcome.done.total()) == (None, 0)
    assert outcome.ends.total() == sum(1 + (ask.second_client_s is not None) for ask in part.requests)


@pytest.mark.parametrize("seed", [30019, 30027])
def test_a_kvstore_that_is_replaced_while_its_regions_move_breaks_nothing(seed: int) -> None:
    """30019: a move that was given before the successor spoke. 30027: one of what a sleeper had kept at the old one."""
    assert CampaignTrial(plan_of(seed)).run().violation is None


def left_while_the_door_slept() -> TrialPlan:
    """A client leaves after 3 s while its only dispatcher sleeps, which is killed before it wakes and hears of it."""
    base = plan_of(3)
    ask = replace(base.requests[0], number=0, at_s=0.0, tokens=(1, 2, 3), max_tokens=60, disconnect_s=3.0, named=False)
    sleep = Fault(0, 2.5, "pause_dispatcher", 0.0, 0.0, 10.0, 0.0)
    death = Fault(1, 5.0, "kill_dispatcher", 0.0, 0.0, 1.0, 0.0)
    shape = replace(base.shape, dispatchers=1, step_s=1.0, slots=96, preset="chunked", quotas=None)
    return replace(base, shape=shape, requests=(ask,), faults=(sleep, death))


def test_a_client_that_left_while_its_dispatcher_slept_is_served_as_an_orphan_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its instance knows only that its dispatcher is gone, and keeps for 30 s what another may adopt (FAULTS)."""
    outcome = CampaignTrial(left_while_the_door_slept()).run()
    assert (outcome.violation, outcome.done.total(), outcome.ends) == (None, 2, Counter({"left": 1}))
    monkeypatch.setattr(InstanceCore, "_on_dispatcher_grace_over", lambda *_: [])
    violation = CampaignTrial(left_while_the_door_slept()).run().violation
    assert violation is not None
    assert "which left" in str(violation)
    assert 36.0 < violation.at_s < 42.0


def test_several_processes_run_the_same_part_of_each_plan_as_one() -> None:
    alone, shared = (run_campaign(range(2), restless_part, jobs=jobs) for jobs in (1, 2))
    assert (alone.digest, alone.events) == (shared.digest, shared.events)
    assert alone.digest != run_campaign(range(2)).digest


def test_what_was_excused_is_summed_and_told() -> None:
    summary = CampaignSummary()
    assert summary.excuses() == "excused looks: none"
    for count in (1, 2):
        summary.add(TrialOutcome(0, excused=Counter({"I9 a disturbed instance is suspected": count, "I5 layers": 1})))
    assert summary.excuses() == "excused looks: I5 layers 2, I9 a disturbed instance is suspected 3"


def test_the_command_says_so_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--campaign", "--seeds", "2", "--first-seed", "1", "--coverage"]) == 0
    *before, last = capsys.readouterr().out.splitlines()
    assert last.startswith("2 seeds, ")
    assert ": 0 violations [digest " in last
    assert before[-1].startswith("excused looks: ")
    assert "transitions of sequences:" in before


def test_a_found_violation_names_the_commands_that_show_it_again() -> None:
    outcome, _ = run_seed(1)
    found = FailingSeed(outcome, plan_of(1), plan_of(1).subset(frozenset({4}), frozenset({0, 2})))
    assert found.replay() == "dunlin sim --campaign --seeds 1 --first-seed 1"
    assert found.replay_smallest() == f"{found.replay()} --only-requests '4' --only-faults '0,2'"


def test_a_violation_crosses_from_one_process_to_another() -> None:
    told = pickle.loads(pickle.dumps(Violation("I8", 1.5, "two owners")))
    assert (str(told), told.invariant, told.at_s) == ("I8 at 1.500000 s: two owners", "I8", 1.5)
