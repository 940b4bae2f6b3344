"""Faults of processes: killed, stopped, replaced while stopped, slow, with a skewed clock."""

import pytest

from simulator.campaign.faults.victims import KEEPALIVE_S
from tests.simulator.campaign.campaign_bench import Campaign, fault

ROLE_OF = {
    "instance": "instance",
    "dispatcher": "dispatcher",
    "kvstore": "kvstore",
    "monitor": "monitor",
    "manager": "global_manager",
}


@pytest.mark.parametrize("word", sorted(ROLE_OF))
def test_a_killed_process_has_a_successor_of_its_name_after_four_seconds_at_most(word: str) -> None:
    campaign = Campaign()
    before = campaign.address(ROLE_OF[word])
    assert campaign.faults.inject(fault(f"kill_{word}", lasts_s=9.0)) == before
    assert before not in campaign.cluster.cores
    campaign.run(3.9)
    assert campaign.cluster.roster.find(before.role, before.name) is None
    campaign.run(0.2)
    successor = campaign.cluster.roster.find(before.role, before.name)
    assert successor is not None
    assert successor.incarnation > before.incarnation


@pytest.mark.parametrize("word", sorted(ROLE_OF))
def test_a_stopped_process_resumes_after_its_fault(word: str) -> None:
    campaign = Campaign()
    victim = campaign.address(ROLE_OF[word])
    since_s = campaign.world.now_s
    assert campaign.faults.inject(fault(f"pause_{word}", lasts_s=2.0)) == victim
    assert campaign.faults.processes.asleep_s == {victim: since_s}
    assert campaign.faults.inject(fault(f"pause_{word}")) is None
    campaign.run(1.9)
    assert campaign.world.is_paused(victim)
    campaign.run(0.2)
    assert (campaign.world.is_paused(victim), campaign.faults.processes.asleep_s) == (False, {})


def test_the_last_instance_is_not_killed_and_one_without_an_engine_not_stopped() -> None:
    campaign = Campaign(instances=1)
    assert campaign.faults.inject(fault("kill_instance")) is None
    campaign.cluster.engine_supervisors[campaign.address("instance")].crash(returns=False)
    assert campaign.faults.inject(fault("pause_instance")) is None


def test_a_process_that_sleeps_beyond_the_keepalive_loses_its_streams() -> None:
    campaign = Campaign(instances=1)
    dispatcher, instance = campaign.address("dispatcher"), campaign.address("instance")
    campaign.faults.inject(fault("pause_dispatcher", lasts_s=KEEPALIVE_S + 2.0))
    campaign.run(KEEPALIVE_S - 0.1)
    assert campaign.world.is_connected(dispatcher, instance)
    campaign.run(0.2)
    assert not campaign.world.is_connected(dispatcher, instance)
    campaign.run(3.0)
    assert campaign.world.is_connected(dispatcher, instance)


def test_a_process_that_outlives_its_replacement_is_killed_later() -> None:
    campaign = Campaign()
    monitor = campaign.address("monitor")
    assert campaign.faults.inject(fault("outlive", other=0.0, lasts_s=5.0)) == monitor
    campaign.run(0.4)
    successor = campaign.address("monitor")
    assert successor.incarnation > monitor.incarnation
    assert campaign.world.is_paused(monitor)
    campaign.run(5.2)
    assert not campaign.world.is_paused(monitor)
    assert monitor in campaign.cluster.cores
    campaign.run(1.5)
    assert (monitor in campaign.cluster.cores, campaign.address("monitor")) == (False, successor)


def test_a_process_that_could_not_be_replaced_is_not_killed() -> None:
    campaign = Campaign()
    monitor = campaign.address("monitor")
    campaign.faults.inject(fault("outlive", other=0.0, lasts_s=5.0))
    campaign.cluster.etcd.begin_outage(3.0)
    campaign.run(20.0)
    assert campaign.address("monitor") == monitor
    campaign.cluster.etcd.begin_outage(3.0)
    assert campaign.faults.inject(fault("outlive", other=0.0)) is None


def test_a_slow_process_has_a_lag_for_a_while() -> None:
    campaign = Campaign()
    victim = campaign.faults.inject(fault("slow_process", amount=0.5, lasts_s=2.0))
    assert victim is not None
    assert campaign.jitter.lag_s == {victim: 0.25}
    campaign.run(2.1)
    assert campaign.jitter.lag_s == {}


def test_a_skewed_clock_goes_on_from_what_it_shows() -> None:
    campaign = Campaign(skews_s=(100.0,))
    at_s = campaign.world.now_s
    victim = campaign.faults.inject(fault("clock_skew", amount=1.0))
    assert victim is not None
    assert campaign.world.clock_s(victim) == pytest.approx(at_s + 100.0)
    campaign.run(10.0)
    assert campaign.world.clock_s(victim) == pytest.approx(at_s + 100.0 + 1.2 * 10.0)
