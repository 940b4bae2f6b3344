"""Ill-timed acts of operators, tools and clients: what reaches which process, and that each is undone."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.door import CancelById
from dunlin.messages.plan import DrainRequest, Evacuate, RemapLayers
from simulator.cluster.process import Delivery
from tests.simulator.campaign.campaign_bench import Campaign, fault


def heard(campaign: Campaign, kind: type[Any]) -> list[tuple[float, Address, Any]]:
    """Deliveries of that kind of message from now on: seconds from now, receiver, message."""
    found: list[tuple[float, Address, Any]] = []
    start_s = campaign.world.now_s

    def note(event: Delivery) -> None:
        if isinstance(event.message, kind):
            found.append((round(event.at_s - start_s, 1), event.to, event.message))

    campaign.world.before = note
    return found


def test_another_tenants_cancel_reaches_the_dispatcher_and_has_no_effect() -> None:
    campaign = Campaign()
    client = campaign.client(tenant="one")
    cancels = heard(campaign, CancelById)
    dispatcher = campaign.address("dispatcher")
    assert campaign.faults.inject(fault("cancel_foreign")) == dispatcher
    campaign.run(10.0)
    ((_, to, message),) = cancels
    assert (to, message.request) == (dispatcher, client.request)
    assert message.tenant not in ("", "one", "two")
    assert client.tokens == client.expected
    assert campaign.faults.inject(fault("cancel_foreign")) is None


def test_a_drain_is_undone_after_four_seconds_at_most() -> None:
    campaign = Campaign()
    drains = heard(campaign, DrainRequest)
    leader = campaign.cluster.etcd.leader
    assert campaign.faults.inject(fault("drain", lasts_s=9.0)) == campaign.address("instance")
    campaign.run(3.0)
    assert campaign.cluster.instances["instance-0"].report().draining
    campaign.run(3.0)
    assert not campaign.cluster.instances["instance-0"].report().draining
    assert drains == [
        (0.0, leader, DrainRequest("instance-0")),
        (4.0, leader, DrainRequest("instance-0", undo=True)),
    ]


def test_a_drain_without_a_leader_reaches_no_process() -> None:
    campaign = Campaign()
    drains = heard(campaign, DrainRequest)
    campaign.cluster.kill(campaign.address("global_manager"))
    assert campaign.faults.inject(fault("drain", lasts_s=1.0)) == campaign.address("instance")
    campaign.run(3.0)
    assert drains == []


def test_a_shed_is_the_leaders_order_to_another_instance() -> None:
    campaign = Campaign(instances=2)
    orders = heard(campaign, Evacuate)
    one, other = campaign.cluster.of_role("instance")
    assert campaign.faults.inject(fault("shed", other=0.0)) is None
    assert campaign.faults.inject(fault("shed", other=0.9, amount=0.5)) == one
    campaign.run(0.1)
    ((_, to, message),) = orders
    assert (to, message.target, message.slots) == (one, other, 41)
    assert message.epoch == campaign.cluster.manager.term.epoch  # type: ignore[union-attr]
    campaign.faults.inject(fault("shed", other=0.9))
    campaign.run(0.1)
    assert (orders[1][2].slots, orders[1][2].ticket) == (1, message.ticket + 1)
    campaign.cluster.kill(campaign.address("global_manager"))
    assert campaign.faults.inject(fault("shed", other=0.9)) is None


def test_a_duplicate_doubles_the_drain_and_a_named_requests_client() -> None:
    campaign = Campaign(dispatchers=2)
    client = campaign.client(named=True)
    drains = heard(campaign, DrainRequest)
    campaign.faults.inject(fault("duplicate", lasts_s=9.0))
    campaign.run(20.0)
    assert [(at_s, message.undo) for at_s, _, message in drains] == [
        (0.0, False),
        (0.0, False),
        (2.0, True),
        (2.0, True),
    ]
    _, twin = campaign.clients.all
    assert twin.tokens == client.tokens == client.expected


def test_a_request_without_a_name_is_not_submitted_twice() -> None:
    campaign = Campaign()
    campaign.client()
    campaign.faults.inject(fault("duplicate"))
    assert len(campaign.clients.all) == 1


@pytest.mark.parametrize(("other", "orders"), [(0.9, 1), (0.1, 2)])
def test_layers_go_by_order_and_come_back(other: float, orders: int) -> None:
    campaign = Campaign()
    remaps = heard(campaign, RemapLayers)
    instance = campaign.address("instance")
    layers = campaign.cluster.engine_supervisors[instance].layers
    assert campaign.faults.inject(fault("remap", amount=0.25, other=other)) == instance
    campaign.run(1.0)
    assert [(to, list(message.layers)) for _, to, message in remaps] == [(instance, [0])] * orders
    assert layers.held == (0,)
    campaign.run(10.0)
    assert layers.is_whole


def test_nobody_orders_other_layers_without_a_leader() -> None:
    campaign = Campaign()
    campaign.cluster.kill(campaign.address("global_manager"))
    assert campaign.faults.inject(fault("remap")) is None
