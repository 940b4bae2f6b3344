"""The roster: the newest process of each name, its node, and the streams between processes."""

from dunlin.effects import Address
from simulator.cluster.roster import Roster


def test_a_roster_knows_who_has_streams_and_spreads_over_nodes() -> None:
    roster = Roster(2)
    kvstores = [Address("kvstore", f"kvstore-{index}", index) for index in range(2)]
    instances = [Address("instance", f"instance-{index}", index + 2) for index in range(3)]
    monitor = Address("monitor", "monitor-0", 9)
    nodes = [roster.add(address) for address in (*kvstores, *instances, monitor)]
    assert nodes == ["node-0", "node-1", "node-0", "node-1", "node-0", "node-0"]
    assert roster.partners(instances[1]) == [monitor, kvstores[1]]
    assert (instances[2], kvstores[0]) in roster.streams()
    assert len(roster.streams()) == 3 + 3 + 2
    successor = Address("instance", "instance-0", 10)
    roster.add(successor)
    roster.remove(instances[0])
    assert (roster.is_current(successor), roster.is_current(instances[0])) == (True, False)
    roster.remove(successor)
    assert roster.of_role("instance") == instances[1:]


def test_a_processes_number_chooses_its_node_and_others_are_on_the_first() -> None:
    roster = Roster(3)
    names = [("instance", "instance-4"), ("kvstore", "kvstore-2"), ("dispatcher", "dispatcher-1")]
    addresses = [Address(role, name, 1) for role, name in names]
    assert [roster.add(address) for address in addresses] == ["node-1", "node-2", "node-0"]
    roster.remove(addresses[0])
    assert roster.node_of[addresses[0]] == "node-1"
    assert roster.all_processes() == [addresses[2], addresses[1]]


def test_only_the_newest_of_a_name_is_found_and_removed() -> None:
    roster = Roster(1)
    first, second = (Address("monitor", "monitor-0", number) for number in (1, 2))
    roster.add(first)
    roster.add(second)
    roster.remove(first)
    assert roster.find("monitor", "monitor-0") == second
    roster.remove(second)
    assert roster.find("monitor", "monitor-0") is None
    assert roster.find("etcd", "") is None
    assert roster.of_role("monitor") == []
    assert roster.streams() == []


def test_streams_are_named_once_and_from_both_ends() -> None:
    roster = Roster(1)
    dispatcher, instance, manager = (
        Address(role, f"{role}-0", 1) for role in ("dispatcher", "instance", "global_manager")
    )
    for address in (dispatcher, instance, manager):
        roster.add(address)
    assert roster.streams() == [(dispatcher, manager), (dispatcher, instance), (manager, instance)]
    assert roster.partners(instance) == [manager, dispatcher]
    assert roster.partners(dispatcher) == [instance, manager]
