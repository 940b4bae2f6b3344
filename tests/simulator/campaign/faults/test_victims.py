"""The choice of victims: by the plan's numbers, those in the aimed phase first."""

import pytest

from dunlin.effects import Address
from simulator.campaign.faults.victims import VictimChooser
from tests.simulator.campaign.campaign_bench import Campaign, fault


def choosing(instances: int) -> tuple[Campaign, VictimChooser]:
    campaign = Campaign(instances=instances)
    return campaign, VictimChooser(campaign.cluster, campaign.clients)


def test_a_pick_is_a_share_of_the_processes_in_order() -> None:
    campaign, victims = choosing(instances=4)
    picked = [victims.of_role("instance", pick) for pick in (0.0, 0.24, 0.25, 0.75, 0.999)]
    assert picked == [campaign.address("instance", index) for index in (0, 0, 1, 3, 3)]
    assert victims.of_role("nothing", 0.5) is None
    everything = campaign.cluster.roster.all_processes()
    assert [victims.any_process(pick) for pick in (0.0, 0.999)] == [everything[0], everything[-1]]


def test_an_instance_in_the_aimed_phase_is_preferred_and_any_taken_without_one() -> None:
    campaign, victims = choosing(instances=2)
    campaign.client()
    (request,) = campaign.cluster.dispatcher.journal
    busy = request.instance
    assert busy is not None
    assert campaign.world.run(lambda: bool(campaign.cluster.core(busy).steps.outstanding), for_s=1.0)
    victims.aim = "computing"
    assert {victims.of_role("instance", pick) for pick in (0.0, 0.5, 0.999)} == {busy}
    victims.aim = "spilling"
    assert len({victims.of_role("instance", pick) for pick in (0.0, 0.999)}) == 2
    victims.aim = "computing"
    assert {one for pick in (0.0, 0.5, 0.999) if (one := victims.stream(fault(pick=pick)))} <= {
        pair for pair in campaign.cluster.roster.streams() if busy in pair
    }


def test_a_stream_is_open_and_its_ends_are_in_the_chosen_order() -> None:
    campaign, victims = choosing(instances=1)
    pair = victims.stream(fault(other=0.4))
    assert pair == campaign.cluster.roster.streams()[0]
    assert victims.stream(fault(other=0.5)) == (pair[1], pair[0])
    campaign.world.sever(*pair)
    assert victims.stream(fault()) == campaign.cluster.roster.streams()[1]
    for each in campaign.cluster.roster.streams():
        campaign.world.sever(*each)
    assert victims.stream(fault()) is None


@pytest.mark.parametrize("state", ["paused", "without an engine"])
def test_an_instance_that_cannot_be_struck_is_no_running_one(state: str) -> None:
    campaign, victims = choosing(instances=1)
    instance = campaign.address("instance")
    assert victims.running_instance(fault()) == instance
    if state == "paused":
        campaign.cluster.pause(instance)
    else:
        campaign.cluster.engine_supervisors[instance].crash(returns=False)
    assert victims.running_instance(fault()) is None


def test_only_a_client_with_an_id_that_waits_is_open() -> None:
    campaign, victims = choosing(instances=1)
    assert victims.open_client(0.5) is None
    done, waiting = campaign.client(max_tokens=1), campaign.client(number=1, max_tokens=90)
    assert [victims.open_client(pick) for pick in (0.0, 0.999)] == [waiting, waiting]
    waiting.request = ""
    assert victims.open_client(0.5) is None
    assert done.is_done


def test_a_process_that_is_not_known_is_not_disturbed() -> None:
    _, victims = choosing(instances=1)
    assert not victims.was_disturbed(Address("instance", "x", 9))
    assert not victims.was_disturbed()
