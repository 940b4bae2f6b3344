"""The transport of regions between host tiers: each expected region has one outcome, told to both sides."""

from dunlin.cost.links import NodeLinks
from dunlin.effects import Address, Message
from dunlin.messages.types import HostRegion, Priority, Region
from services.kvstore.transfer.transport_commands import (
    TRANSPORT,
    CancelReceive,
    ExpectRegion,
    PushRegion,
    ReceiveReady,
    RegionPayload,
    RegionPushed,
    RegionReceived,
)
from simulator.cluster.kv_transport import PATIENCE_S, SimulatedKvTransport
from simulator.cluster.scripted import ScriptedCluster
from simulator.cluster.world import World
from simulator.engine.host_memory import SimulatedHostMemory
from simulator.links.ports import make_fabric
from tests.simulator.cluster.hearing import Ear

HERE, THERE = (Address("kvstore", f"kvstore-{index}", index + 1) for index in range(2))
OURS, THEIRS = HostRegion(1, 2, 64, 100), HostRegion(7, 3, 4096, 100)


def payload(host: HostRegion) -> RegionPayload:
    return RegionPayload(host, Region(0, 2, 0, 2), "float32", b"")


class TwoStores:
    """Two kvstores of two nodes, 100 bytes per second apart; the first one has content [8, 9] in `OURS`."""

    def __init__(self, latency_s: float = 0.0) -> None:
        self.world = World(0.0)
        self.ears = {HERE: Ear(), THERE: Ear()}
        self.memories = {HERE: SimulatedHostMemory(), THERE: SimulatedHostMemory()}
        self.memories[HERE].write(OURS, [8, 9])
        fabric = make_fabric(self.world.call_at, NodeLinks(nic=100.0))
        nodes = {HERE: "node-0", THERE: "node-1"}
        self.world.add(TRANSPORT, SimulatedKvTransport(self.memories, self.world, fabric, nodes, latency_s))
        for address, ear in self.ears.items():
            self.world.add(address, ear)
            self.world.connect(address, TRANSPORT)
        self.world.run_to(0.0)

    def tell(self, sender: Address, message: Message, at_s: float) -> None:
        self.world.run_to(at_s)
        self.world.post(sender, TRANSPORT, message)

    def expect(self) -> bytes:
        """The second kvstore expects a region in `THEIRS`; the token to push it with."""
        self.tell(THERE, ExpectRegion(payload(THEIRS), HERE), self.world.now_s)
        self.world.run_to(self.world.now_s)
        ready = self.heard(THERE)[-1][1]
        assert isinstance(ready, ReceiveReady)
        assert (ready.handle, ready.generation, ready.endpoint) == (7, 3, "kvstore-1")
        return ready.token

    def push(self, token: bytes, at_s: float) -> None:
        push = PushRegion(5, THERE, "", token, 7, 3, payload(OURS), Priority.KV)
        self.tell(HERE, push, at_s)

    def heard(self, address: Address) -> list[tuple[float, Message]]:
        kinds = ReceiveReady | RegionReceived | RegionPushed
        return [(at_s, message) for at_s, _, message in self.ears[address].heard if isinstance(message, kinds)]


def test_a_pushed_region_is_copied_when_its_last_byte_arrived() -> None:
    stores = TwoStores()
    stores.push(stores.expect(), at_s=2.0)
    stores.world.run_to(2.9)
    assert stores.memories[THERE].contents == {}
    stores.world.run_to(50.0)
    assert stores.memories[THERE].contents == {4096: [8, 9]}
    assert stores.heard(HERE) == [(3.0, RegionPushed(5))]
    assert stores.heard(THERE)[1:] == [(3.0, RegionReceived(7, 3))]


def test_the_latency_comes_after_the_last_byte() -> None:
    stores = TwoStores(latency_s=0.25)
    stores.push(stores.expect(), at_s=2.0)
    stores.world.run_to(50.0)
    assert stores.heard(HERE) == [(3.25, RegionPushed(5))]


def test_a_cluster_reports_a_region_that_is_never_pushed_as_lost() -> None:
    cluster = ScriptedCluster(nodes=2)
    cluster.run_until_ready()
    ear = Ear()
    waiting = Address("kvstore", "waiting", 99)
    goods = RegionPayload(HostRegion(1, 2, 0, 64), Region(0, 2, 0, 1), "float32", b"")
    cluster.world.add(waiting, ear)
    cluster.world.connect(waiting, TRANSPORT)
    cluster.world.post(waiting, TRANSPORT, ExpectRegion(goods, cluster.kvstore.address))
    asked_s = cluster.world.now_s
    cluster.world.run(for_s=2 * PATIENCE_S)
    said = [(at_s, message) for at_s, _, message in ear.heard if isinstance(message, ReceiveReady | RegionReceived)]
    assert isinstance(said[0][1], ReceiveReady)
    assert said[1][1] == RegionReceived(1, 2, "nothing came")
    assert PATIENCE_S <= said[1][0] - asked_s < PATIENCE_S + 0.01


def test_a_region_that_is_never_pushed_is_lost_once() -> None:
    stores = TwoStores()
    token = stores.expect()
    stores.push(token, at_s=2 * PATIENCE_S)
    stores.world.run_to(50.0)
    assert stores.heard(THERE)[1:] == [(PATIENCE_S, RegionReceived(7, 3, "nothing came"))]
    assert stores.heard(HERE) == [(2 * PATIENCE_S, RegionPushed(5, "it is not expected"))]
    assert stores.memories[THERE].contents == {}


def test_only_the_receiver_itself_and_the_right_name_cancel() -> None:
    stores = TwoStores()
    stores.expect()
    stores.tell(HERE, CancelReceive(7, 3), 1.0)
    stores.tell(THERE, CancelReceive(7, 2), 1.0)
    stores.tell(THERE, CancelReceive(7, 3), 2.0)
    stores.world.run_to(50.0)
    assert stores.heard(THERE)[1:] == [(2.0, RegionReceived(7, 3, "abandoned"))]


def test_what_is_cancelled_while_it_travels_is_not_stored() -> None:
    stores = TwoStores()
    stores.push(stores.expect(), at_s=1.0)
    stores.tell(THERE, CancelReceive(7, 3), 1.5)
    stores.world.run_to(50.0)
    assert stores.memories[THERE].contents == {}
    assert stores.heard(HERE) == [(2.0, RegionPushed(5, "it is not expected"))]


def test_what_a_dead_sender_pushed_is_not_stored() -> None:
    stores = TwoStores()
    stores.push(stores.expect(), at_s=1.0)
    stores.world.run_to(1.5)
    stores.world.kill(HERE)
    stores.world.run_to(50.0)
    assert stores.memories[THERE].contents == {}
    assert stores.heard(THERE)[1:] == [(2.0, RegionReceived(7, 3, "the sender is gone"))]
