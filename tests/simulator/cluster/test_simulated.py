"""A cluster's processes: which run, which leads, what a lease outlives, which memory an engine maps, what is lost."""

from typing import Any

from dunlin.effects import Address
from dunlin.messages.door import Quota
from dunlin.messages.membership import MembersReset
from simulator.cluster.etcd import LEASE_S
from simulator.cluster.process import Delivery
from simulator.cluster.scripted import ScriptedCluster

PROMPT = list(range(40))


def ready(**settings: Any) -> ScriptedCluster:
    cluster = ScriptedCluster(**settings)
    cluster.run_until_ready()
    return cluster


def leaders(cluster: ScriptedCluster) -> list[str]:
    """The managers that believe that they lead."""
    managers = [cluster.core(address) for address in cluster.of_role("global_manager")]
    return [core.address.name for core in managers if core.term is not None]


def test_of_several_managers_one_leads_and_another_when_its_lease_is_over() -> None:
    cluster = ready(managers=3)
    assert leaders(cluster) == ["manager-0"]
    cluster.kill(cluster.manager.address)
    died_s = cluster.world.now_s
    assert cluster.world.run(lambda: bool(leaders(cluster)), for_s=60.0)
    assert leaders(cluster) == ["manager-1"]
    assert LEASE_S <= cluster.world.now_s - died_s < LEASE_S + 0.01


def test_a_leader_that_sleeps_hears_first_that_another_leads() -> None:
    cluster = ready(managers=2)
    sleeper = cluster.manager
    cluster.pause(sleeper.address)
    cluster.world.run(for_s=LEASE_S + 1.0)
    assert leaders(cluster) == ["manager-0", "manager-1"]
    cluster.world.resume(sleeper.address)
    cluster.world.run(for_s=0.001)
    assert leaders(cluster) == ["manager-1"]


def test_thousands_that_start_together_are_told_of_each_other_once() -> None:
    cluster = ScriptedCluster(instances=40, dispatchers=2)
    resets: list[Address] = []

    def heard(event: Delivery) -> None:
        if isinstance(event.message, MembersReset):
            resets.append(event.to)

    cluster.world.before = heard
    cluster.run_until_ready()
    assert sorted(address.name for address in resets) == ["dispatcher-0", "dispatcher-1", "kvstore-0", "monitor-0"]


def test_while_etcd_is_down_no_process_starts_and_no_message_is_sent() -> None:
    cluster = ready(instances=2)
    cluster.etcd.begin_outage(3.0)
    name = "instance-1"
    cluster.kill_instance(name)
    cluster.start("instance", name)
    cluster.world.run(for_s=2.9)
    assert list(cluster.instances) == ["instance-0"]
    cluster.world.run(for_s=10.0)
    assert cluster.is_ready
    assert list(cluster.instances) == ["instance-0", name]


def test_a_dispatcher_that_starts_later_hears_of_the_quotas() -> None:
    cluster = ready()
    cluster.etcd.set_quotas([Quota("one", running=0)])
    cluster.world.run(for_s=0.1)
    cluster.start_dispatcher("dispatcher-1")
    cluster.world.run(for_s=2.0)
    for at in ("dispatcher-0", "dispatcher-1"):
        client = cluster.submit(PROMPT, at=at, tenant="one")
        cluster.run_until_done()
        assert client.rejected is not None
        assert "more than tenant" in client.rejected.detail


def test_a_broken_stream_is_dialled_again() -> None:
    cluster = ready()
    one, other = cluster.dispatcher.address, cluster.instances["instance-0"].address
    cluster.reset_stream(one, other, after_s=2.0)
    cluster.world.run(for_s=1.9)
    assert len(cluster.dispatcher.fleet.serving) == 1
    cluster.world.run(for_s=1.0)
    assert len(cluster.dispatcher.fleet.serving) == 2


def test_a_process_that_missed_its_peers_end_receives_it_when_it_would_be_dialled() -> None:
    cluster = ready()
    one, other = cluster.dispatcher.address, cluster.instances["instance-0"].address
    cluster.world.sever(one, other)
    cluster.kill(other)
    cluster.redial(one, other, unaware=one)
    cluster.world.run(for_s=0.1)
    assert not cluster.world.is_connected(one, other)
    assert other not in cluster.dispatcher.fleet.serving


def test_an_engine_maps_the_memory_of_the_kvstore_that_is_there() -> None:
    cluster = ready(instances=1)
    (instance,) = cluster.of_role("instance")
    first = cluster.kvstore.address
    assert cluster.mapped_of[instance] == first
    cluster.restart("kvstore")
    cluster.world.run(for_s=10.0)
    assert cluster.mapped_of[instance] == cluster.kvstore.address != first
    assert cluster.tier is not cluster.host_memories[first]


def test_clocks_are_skewed_in_the_order_of_starts() -> None:
    cluster = ScriptedCluster(skews_s=(0.0, 100.0))
    shown = [cluster.world.clock_s(address) for address in cluster.cores]
    assert shown == [0.0, 100.0] * 3
