"""Features tell runs apart by what handlers did, and are the same for the same run."""

from dataclasses import replace

from simulator.campaign.coverage import Coverage
from simulator.campaign.plans import Fault, TrialPlan
from simulator.campaign.search.dense_plans import dense_plan
from simulator.campaign.search.features import RunFeatures
from simulator.campaign.trial import CampaignTrial

QUIET = dense_plan(95).only(frozenset({2, 3}), frozenset())
CRASH = Fault(0, 0.0, "crash_engine", 0.0, 0.0, 0.1, 0.0, aim="computing")


def covered(plan: TrialPlan) -> RunFeatures:
    coverage = RunFeatures()
    assert CampaignTrial(plan, coverage).run().violation is None
    return coverage


def test_a_run_has_the_same_features_again_and_a_crash_brings_more() -> None:
    quiet, again, crashed = covered(QUIET), covered(QUIET), covered(replace(QUIET, faults=(CRASH,)))
    assert quiet.found == again.found
    assert len(crashed.found - quiet.found) > 10


def test_it_counts_what_coverage_counts() -> None:
    plain, features = Coverage(), covered(replace(QUIET, faults=(CRASH,)))
    CampaignTrial(replace(QUIET, faults=(CRASH,)), plain).run()
    assert (plain.messages, plain.transitions) == (features.messages, features.transitions)
    assert plain.faults == features.faults != {}


def test_each_way_to_cover_something_is_a_feature() -> None:
    coverage = RunFeatures()
    seen = [len(coverage.found)]
    coverage.fault_applied("drain", "instance", "idle")
    seen.append(len(coverage.found))
    coverage.fault_applied("drain", "instance", "idle")
    coverage.fault_applied("drain", "instance", "waiting")
    assert [*seen, len(coverage.found)] == [0, 1, 2]
