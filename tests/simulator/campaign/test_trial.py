"""Single runs of plans that a campaign seldom draws: dense faults, each preset, poison alone, successors at once."""

from collections import Counter
from dataclasses import replace

import pytest

from dunlin.policies.presets import PRESETS
from simulator.campaign.invariants import slots
from simulator.campaign.outcome import TrialOutcome
from simulator.campaign.plans import Fault, TrialPlan
from simulator.campaign.runner import plan_of
from simulator.campaign.trial import CampaignTrial

FAULTS_UNTIL_S, ASKS_UNTIL_S = 5.0, 2.0
NOT_WITH_POISON = ("crash_engine", "wild_engine", "duplicate")
RESTARTS = ("kill_kvstore", "kill_monitor", "kill_manager", "kill_dispatcher", "kill_instance", "drop")


def crowded(seed: int, preset: str = "") -> TrialPlan:
    """The requests of one seed within two seconds, under the faults of three within five."""
    base = plan_of(seed)
    faults = [fault for one in range(seed, seed + 3) for fault in plan_of(one).faults]
    shape = replace(base.shape, instances=max(2, base.shape.instances), dispatchers=2)
    return replace(
        base,
        shape=replace(shape, preset=preset or shape.preset),
        requests=tuple(replace(ask, at_s=ask.at_s % ASKS_UNTIL_S) for ask in base.requests),
        faults=tuple(replace(one, number=at, at_s=one.at_s % FAULTS_UNTIL_S) for at, one in enumerate(faults)),
    )


def run(plan: TrialPlan) -> TrialOutcome:
    outcome = CampaignTrial(plan).run()
    assert outcome.violation is None, f"seed {plan.seed}: {outcome.violation}"
    return outcome


@pytest.mark.parametrize("seed", range(16))
def test_crowded_faults_break_nothing_at_any_event(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every event is followed by a check of the whole core that it reached."""
    monkeypatch.setattr(slots, "FULL_EVERY", 1)
    run(crowded(seed))


@pytest.mark.parametrize("seed", range(300, 316))
def test_log_probabilities_of_prompts_come_once_and_whole_whatever_is_killed(seed: int) -> None:
    """Of prompts that begin alike, so that there is KV to take for them that another computed, and that take many
    steps, so that much happens in between.
    """
    base = crowded(seed)
    asks = tuple(
        replace(ask, tokens=(*range(40), *ask.tokens[:40]), prompt_best=(None, 0, 2)[ask.number % 3])
        for ask in base.requests
    )
    shape = replace(base.shape, slots=max(base.shape.slots, 256), budget_tokens=8)
    outcome = run(replace(base, requests=asks, shape=shape))
    assert outcome.ends["length"] > 0


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_no_preset_breaks_an_invariant(preset: str) -> None:
    run(crowded(200, preset))


@pytest.mark.parametrize("seed", range(6))
def test_a_static_split_of_prefill_and_decode_breaks_no_invariant(seed: int) -> None:
    run(crowded(seed, "distserve"))


def test_crowded_plans_strike_with_nearly_every_fault() -> None:
    done: Counter[str] = Counter()
    for seed in range(0, 24, 3):
        done += run(crowded(seed)).done
    assert len(done) > 25, done


def poisoned(seed: int) -> TrialPlan:
    """Two of the requests crash every engine that computes them, no engine crashes of anything else, and no client
    comes but those that are planned.
    """
    base = crowded(seed)
    asks = tuple(replace(ask, poison=ask.number < 2, timeout_s=None, disconnect_s=None) for ask in base.requests)
    faults = tuple(fault for fault in base.faults if fault.kind not in NOT_WITH_POISON)
    return replace(base, requests=asks, faults=faults, shape=replace(base.shape, quotas=None, max_queued=1024))


@pytest.mark.parametrize("seed", range(100, 106))
def test_poison_requests_end_with_an_error_and_no_other_does(seed: int) -> None:
    plan = poisoned(seed)
    outcome = run(plan)
    assert outcome.done["bite"] >= 2
    # Two clients come for a request with a name, and both hear of its end.
    clients = Counter({ask.number: 1 + (ask.second_client_s is not None) for ask in plan.requests})
    errors = clients[0] + clients[1]
    assert outcome.ends == Counter(error=errors, length=clients.total() - errors)


@pytest.mark.parametrize("seed", range(300, 304))
def test_processes_that_are_replaced_at_once_lose_nothing(seed: int) -> None:
    """Successors start, and broken streams are dialled again, in the moment of the loss."""
    base = crowded(seed)
    kinds = [RESTARTS[at % len(RESTARTS)] for at in range(12)]
    faults = (Fault(at, 0.4 * at, kind, at / 12, 1 - at / 12, 0.0, 0.0) for at, kind in enumerate(kinds))
    outcome = run(replace(base, faults=tuple(faults)))
    assert outcome.done.total() >= 10
