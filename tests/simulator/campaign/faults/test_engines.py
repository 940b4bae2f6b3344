"""Faults of engines: what each does to the engine process, and when it recovers."""

import pytest

from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from tests.simulator.campaign.campaign_bench import Campaign, fault


def struck(kind: str, is_poisoned: bool = False, **changes: float) -> tuple[Campaign, SimulatedEngineSupervisor]:
    """A cluster of one instance, whose engine a fault has hit."""
    campaign = Campaign(is_poisoned, instances=1, engine={"restart_s": 0.5})
    supervisor = campaign.cluster.engine_supervisors[campaign.address("instance")]
    victim = campaign.faults.inject(fault(kind, **changes))
    assert victim == (None if is_poisoned else campaign.address("instance"))
    return campaign, supervisor


@pytest.mark.parametrize(("kind", "is_trusted", "crashes"), [("crash_engine", True, 0), ("wild_engine", False, 1)])
def test_a_killed_engine_returns_and_its_kv_cache_is_trusted_or_not(kind: str, is_trusted: bool, crashes: int) -> None:
    campaign, supervisor = struck(kind)
    assert (len(supervisor.ended), supervisor.is_trusted, campaign.faults.engines.crashes) == (1, is_trusted, crashes)
    assert not campaign.cluster.has_engine(campaign.address("instance"))
    campaign.run(0.6)
    assert campaign.cluster.has_engine(campaign.address("instance"))


def test_no_engine_crashes_by_chance_beside_poison() -> None:
    campaign, supervisor = struck("wild_engine", is_poisoned=True)
    assert (supervisor.ended, campaign.faults.engines.crashes) == ([], 0)


def test_a_hung_engine_is_replaced_by_its_instance() -> None:
    campaign, supervisor = struck("hang_engine")
    hung = supervisor.engine
    assert hung.is_stuck
    campaign.client()
    campaign.run(60.0)
    assert supervisor.ended == [hung]
    assert not supervisor.engine.is_stuck
    assert campaign.clients.all_done()


@pytest.mark.parametrize(("amount", "slowness"), [(0.0, 1.0), (0.5, 10.5), (1.0, 20.0)])
def test_a_slow_engine_recovers(amount: float, slowness: float) -> None:
    campaign, supervisor = struck("slow_engine", amount=amount, lasts_s=3.0)
    assert supervisor.engine.runner.slowness == slowness
    campaign.run(2.9)
    assert supervisor.engine.runner.slowness == slowness
    campaign.run(0.2)
    assert supervisor.engine.runner.slowness == 1.0


def test_without_disk_space_no_engine_starts_until_there_is_some() -> None:
    campaign, _ = struck("disk_full", lasts_s=4.0)
    campaign.run(3.9)
    assert not campaign.cluster.has_engine(campaign.address("instance"))
    campaign.run(0.7)
    assert campaign.cluster.has_engine(campaign.address("instance"))


def test_an_engine_that_is_down_already_is_not_struck() -> None:
    campaign, supervisor = struck("disk_full", lasts_s=4.0)
    for kind in ("crash_engine", "wild_engine", "disk_full"):
        assert campaign.faults.inject(fault(kind)) is None
    assert len(supervisor.ended) == 1


def test_an_instance_that_dies_without_disk_space_starts_no_engine() -> None:
    campaign, supervisor = struck("disk_full", lasts_s=1.0)
    campaign.cluster.kill(campaign.address("instance"))
    campaign.run(5.0)
    assert len(supervisor.ended) == 1
    assert supervisor.engine in supervisor.ended


def test_late_answers_of_a_killed_engine_reach_its_instance_and_change_nothing() -> None:
    campaign = Campaign(instances=1, engine={"restart_s": 0.5})
    core, client = campaign.cluster.instances["instance-0"], campaign.client()
    campaign.run(0.1)
    assert campaign.faults.inject(fault("late_answers")) == core.address
    assert core.report().stale_total == 0
    campaign.run(60.0)
    assert core.report().stale_total > 0
    assert client.tokens == client.expected
