"""A scripted cluster: what a test may ask of it, and the errors that name what did not come."""

from collections.abc import Callable

import pytest

from dunlin.messages.types import FinishReason
from simulator.cluster.scripted import ScriptedCluster
from simulator.engine.errors import ContractBroken


def ready(**settings: object) -> ScriptedCluster:
    cluster = ScriptedCluster(**settings)
    cluster.run_until_ready()
    return cluster


def test_a_request_is_answered_exactly_and_leaves_every_slot_free() -> None:
    cluster = ready()
    client = cluster.submit([1, 2, 3], 30)
    assert cluster.world.run(lambda: len(client.tokens) > 3)
    assert cluster.instance_running(client) in cluster.instances
    assert cluster.request_number(client) == 1
    assert not cluster.all_free()
    cluster.check_conservation()
    cluster.run_until_done()
    cluster.world.run(for_s=1.0)
    assert client.is_exact
    assert cluster.all_free()
    with pytest.raises(LookupError, match=f"no instance runs {client.request}"):
        cluster.instance_running(client)


def test_a_cluster_that_does_not_come_up_is_an_error() -> None:
    with pytest.raises(ContractBroken, match=r"not all instances are ready after 0\.5 s"):
        ScriptedCluster(engine={"load_s": 2.0}).run_until_ready(0.5)


def test_clients_without_an_end_are_named() -> None:
    cluster = ready(engine={"step_s": 1.0})
    cluster.submit([1], 1)
    cluster.submit([2], 9)
    with pytest.raises(ContractBroken, match=r"clients without an answer after 3\.0 s: client-1$"):
        cluster.run_until_done(3.0)


def test_slots_that_do_not_add_up_are_an_error() -> None:
    cluster = ready(instances=1)
    core = cluster.instances["instance-0"]
    core.slot_table.free -= 1
    with pytest.raises(Exception, match="255 counted free, 256 are"):
        cluster.check_conservation()


def test_a_resumed_request_goes_on_at_another_dispatcher() -> None:
    cluster = ready(dispatchers=2)
    client = cluster.submit([1, 2, 3], 30)
    cluster.world.run(lambda: len(client.tokens) > 3)
    cluster.kill_dispatcher("dispatcher-0")
    cluster.reconnect(client, "dispatcher-1")
    cluster.run_until_done()
    assert (client.dispatcher, client.is_exact) == ("dispatcher-1", True)


@pytest.mark.parametrize("leave", [ScriptedCluster.cancel, ScriptedCluster.disconnect])
def test_a_client_that_cancels_or_leaves_gets_nothing_more(leave: Callable[..., None]) -> None:
    cluster = ready()
    client = cluster.submit([1], 90)
    cluster.world.run(lambda: bool(client.tokens))
    leave(cluster, client)
    cluster.world.run(for_s=2.0)
    assert client.finish is FinishReason.RUNNING
    assert len(client.tokens) < 5
    assert cluster.dispatcher.report().cancelled_total == 1
    assert cluster.all_free()


def test_a_restarted_role_has_a_new_incarnation_and_a_killed_instance_no_successor() -> None:
    cluster = ready(instances=2)
    before = cluster.monitor.address
    cluster.restart("monitor")
    assert cluster.monitor.address.name == before.name
    assert cluster.monitor.address.incarnation > before.incarnation
    cluster.kill_instance("instance-1")
    cluster.world.run(for_s=10.0)
    assert list(cluster.instances) == ["instance-0"]
    assert cluster.start_instance("instance-1") is cluster.instances["instance-1"]


def test_a_drained_instance_takes_no_request_until_that_is_undone() -> None:
    cluster = ready(instances=2)
    cluster.drain("instance-0")
    cluster.world.run(for_s=2.0)
    assert cluster.instances["instance-0"].report().draining
    cluster.drain("instance-0", undo=True)
    cluster.world.run(for_s=2.0)
    assert not cluster.instances["instance-0"].report().draining


def test_reasons_reach_the_monitor_when_they_are_forwarded() -> None:
    cluster = ready()
    client = cluster.submit([1], 2)
    cluster.run_until_done()
    assert cluster.monitor.reasons.records_of(client.request, 9) == ()
    cluster.forward_reasons()
    kinds = [record.kind for record in cluster.monitor.reasons.records_of(client.request, 9)]
    assert {"Admitted", "Place"} <= set(kinds)
