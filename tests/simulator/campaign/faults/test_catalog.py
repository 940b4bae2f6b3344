"""The fault injector: every kind has an action, and a victim counts as disturbed until its fault has passed."""

import pytest

from simulator.campaign.faults.catalog import KINDS, fault_kinds
from simulator.campaign.faults.victims import KEEPALIVE_S
from tests.simulator.campaign.campaign_bench import Campaign, fault


def test_the_kinds_are_the_actions_of_all_groups_each_once() -> None:
    kinds = fault_kinds()
    actions = [name for group in KINDS for name in vars(group) if name.startswith("do_")]
    assert len(actions) == len(kinds) == len(set(kinds)) > 25
    assert list(kinds) == sorted(kinds)
    assert {"crash_engine", "drop", "corrupt", "lose_lease", "drain", "kill_monitor"} <= set(kinds)


@pytest.mark.parametrize("kind", fault_kinds())
def test_a_fault_names_a_process_as_its_victim_or_none(kind: str) -> None:
    campaign = Campaign(dispatchers=2, managers=2)
    processes = campaign.cluster.roster.all_processes()
    campaign.client()
    victim = campaign.faults.inject(fault(kind, pick=0.5, other=0.9, amount=0.5))
    assert victim is None or victim in processes
    assert campaign.faults.was_disturbed(*processes) is (victim is not None)


def test_a_victim_is_disturbed_until_the_keepalive_after_its_fault() -> None:
    campaign = Campaign()
    victim = campaign.faults.inject(fault("hang_engine", lasts_s=2.0))
    assert victim == campaign.address("instance")
    assert campaign.faults.last_s == campaign.world.now_s + 2.0 + KEEPALIVE_S
    campaign.run(2.0 + KEEPALIVE_S - 0.001)
    assert campaign.faults.was_disturbed(campaign.address("monitor"), victim)
    campaign.run(0.002)
    assert not campaign.faults.was_disturbed(campaign.address("monitor"), victim)


def test_an_impossible_fault_leaves_no_trace() -> None:
    campaign = Campaign(instances=1)
    assert campaign.faults.inject(fault("kill_instance")) is None
    assert campaign.faults.last_s == 0.0
    assert not campaign.faults.was_disturbed(*campaign.cluster.cores)
    with pytest.raises(KeyError):
        campaign.faults.inject(fault("earthquake"))


def test_a_later_short_fault_does_not_end_an_earlier_long_one() -> None:
    campaign = Campaign()
    campaign.faults.inject(fault("hang_engine", lasts_s=20.0))
    last_s = campaign.faults.last_s
    campaign.faults.inject(fault("hang_engine", lasts_s=0.1))
    assert campaign.faults.last_s == last_s
    campaign.run(15.0)
    assert campaign.faults.was_disturbed(campaign.address("instance"))
