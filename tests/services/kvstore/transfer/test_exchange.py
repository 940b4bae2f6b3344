"""Regions between the kvstores of several nodes: asked for, replicated, sought; and what can go wrong."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from dunlin.effects import Address, Effect, Gone, Joined, Message, Send
from dunlin.messages.exchange import DropCopies, Offer, RegionArrived, TransferAgent
from dunlin.messages.group import DIALING, DialPeer
from dunlin.messages.membership import Member, MembersReset
from dunlin.messages.pool import (
    CommitRegion,
    FindRegions,
    RegionReserved,
    RegionsFound,
    RegionsSent,
    ReleaseRegion,
    ReserveRegion,
    SendRegions,
)
from dunlin.messages.types import KeptRegion, Priority, Region
from services.kvstore.config import KvstoreConfig
from services.kvstore.core import KvstoreCore
from services.kvstore.regions.writer_absences import PROCESSES
from services.kvstore.transfer.transport_commands import (
    TRANSPORT,
    CancelReceive,
    ExpectRegion,
    ForgetPeer,
    PushRegion,
    ReceiveReady,
    RegionPayload,
    RegionPushed,
    RegionReceived,
)
from simulator.cluster.world import World
from tests.settings import configured

ETCD = Address("etcd", "")
D = Address("dispatcher", "d", 1)
UNIT = 64
AGENT = TransferAgent("agent", b"metadata", 4096, 1, 1, 64)


class Carrier:
    """Carries bytes in no time, unless told to: `silent`, `breaks` (the sender hears it), `damages` (the receiver)."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.mode = ""
        self.pushes: list[PushRegion] = []
        self.abandoned: list[CancelReceive] = []
        self.forgotten: list[ForgetPeer] = []
        self.bytes: dict[tuple[str, int], str] = {}
        self.expected: dict[bytes, tuple[str, RegionPayload]] = {}

    def carry(self, node: "Node", message: Message) -> None:
        if isinstance(message, ExpectRegion):
            token = len(self.expected).to_bytes(16, "little")
            self.expected[token] = (node.name, message.payload)
            host = message.payload.host
            node.told(ReceiveReady(host.handle, host.generation, node.name, token, message.agent))
        elif isinstance(message, CancelReceive):
            self.abandoned.append(message)
            node.told(RegionReceived(message.handle, message.generation, "abandoned"))
        elif isinstance(message, ForgetPeer):
            self.forgotten.append(message)
        elif isinstance(message, PushRegion):
            self._push(node, message)

    def _push(self, node: "Node", push: PushRegion) -> None:
        self.pushes.append(push)
        if self.mode == "silent":
            return
        there, goods = self.expected[push.token]
        target = self.nodes[there]
        assert push.endpoint == there
        if self.mode == "breaks":
            node.told(RegionPushed(push.ticket, "broken"))
            target.told(RegionReceived(push.handle, push.generation, "the connection ended"))
            return
        detail = "the bytes do not match their checksum" if self.mode == "damages" else ""
        assert (goods.region, goods.chain, goods.kv_dtype) == (
            push.payload.region,
            push.payload.chain,
            push.payload.kv_dtype,
        )
        assert goods.host.checksum == push.payload.host.checksum
        self.bytes[there, goods.host.offset_bytes] = self.bytes.get((node.name, push.payload.host.offset_bytes), "?")
        node.told(RegionPushed(push.ticket))
        target.told(RegionReceived(push.handle, push.generation, detail))


class Node:
    """A kvstore with its carrier and its dialer."""

    def __init__(self, world: "Exchange", name: str, **settings: Any) -> None:
        self.name = name
        self.world = world
        self.address = Address("kvstore", name, 10 + len(world.nodes))
        config = {"tier__capacity_bytes": 16 * UNIT, "node": name, "tier__alignment_bytes": UNIT, **settings}
        self.core = KvstoreCore(self.address, configured(KvstoreConfig, tier_path="/tier", **config))

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        kept: list[Effect] = []
        for effect in self.core.receive(now_s, sender, message):
            if not isinstance(effect, Send) or effect.to not in (TRANSPORT, DIALING, PROCESSES):
                kept.append(effect)
            elif effect.to == TRANSPORT:
                self.world.carrier.carry(self, effect.message)
            elif isinstance(effect.message, DialPeer) and self.world.world.is_up(effect.message.peer):
                self.world.world.connect(self.address, effect.message.peer)
        self.core.catalog.check_integrity()
        return kept

    def told(self, message: Message) -> None:
        self.world.world.post(TRANSPORT, self.address, message)


@dataclass
class Instance:
    """Records what it hears; asks for room and writes as told."""

    address: Address
    world: "Exchange"
    node: Node
    heard: list[Message] = field(default_factory=list)

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if not isinstance(message, Joined | Gone):
            self.heard.append(message)
        return []

    def say(self, message: Message) -> None:
        self.world.world.post(self.address, self.node.address, message)
        self.world.run()

    def keep(self, start: int, stop: int, key: str = "k", **fields: Any) -> KeptRegion:
        """A committed region."""
        region, chain = Region(0, 2, start, stop), f"chain {stop}".encode()
        names: dict[str, Any] = {"dispatcher": D, "request": 1, "attempt": 1, "region": region, "chain": chain}
        fields_given = {"length_bytes": UNIT, "kv_dtype": "fp32", "weights_digest": "w", "key": key, **names, **fields}
        self.say(ReserveRegion(1, **fields_given))
        reserved = self.heard[-1]
        assert isinstance(reserved, RegionReserved), reserved
        host = reserved.host
        self.world.carrier.bytes[self.node.name, host.offset_bytes] = f"{key} {start}-{stop}"
        self.say(CommitRegion(host.handle, host.generation, 100 + stop))
        return KeptRegion(region, host, chain)

    def claim(self, key: str = "k", attempt: int = 2) -> tuple[KeptRegion, ...]:
        """What it finds."""
        self.say(FindRegions(7, key, D, 1, attempt, "w", "fp32"))
        found = self.heard[-1]
        assert isinstance(found, RegionsFound), found
        return found.regions


class Exchange:
    def __init__(self, nodes: int = 2, **settings: Any) -> None:
        self.world = World()
        self.carrier = Carrier()
        self.nodes: list[Node] = []
        for index in range(nodes):
            self.nodes.append(Node(self, f"n{index}", **settings))
        self.carrier.nodes = {node.name: node for node in self.nodes}
        self.instances = [Instance(Address("instance", f"i-{n.name}", 50), self, n) for n in self.nodes]
        members = MembersReset(tuple(Member(n.address, "", n.name, 0) for n in self.nodes))
        for node, instance in zip(self.nodes, self.instances, strict=True):
            self.world.add(node.address, node)
            self.world.add(instance.address, instance)
            self.world.post(ETCD, node.address, members)
            self.world.connect(instance.address, node.address)
        self.run()

    def run(self, for_s: float = 0.1) -> None:
        self.world.run(for_s=for_s)

    def sent(self, kind: type[Any]) -> list[Any]:
        return [message for *_, message in self.world.sent if isinstance(message, kind)]

    def content(self, node: int, kept: KeptRegion) -> str:
        return self.carrier.bytes[self.nodes[node].name, kept.host.offset_bytes]


def test_what_was_asked_for_lies_there_and_can_be_claimed() -> None:
    world = Exchange()
    here, there = world.instances
    for span in ((0, 16), (16, 32), (32, 40)):
        here.keep(*span)
    here.keep(0, 16, key="other")
    here.say(SendRegions(5, "k", world.nodes[1].address))
    assert here.heard[-1] == RegionsSent(5, 40)
    found = there.claim()
    assert [kept.region.stop for kept in found] == [16, 32, 40]
    assert [world.content(1, kept) for kept in found] == ["k 0-16", "k 16-32", "k 32-40"]
    assert [kept.host.checksum for kept in found] == [116, 132, 140]
    assert len(world.nodes[0].core.catalog) == 4, "the asker's own stay"


def test_a_second_time_only_what_is_new_is_sent() -> None:
    world = Exchange()
    here, there = world.instances
    here.keep(0, 16)
    here.say(SendRegions(5, "k", world.nodes[1].address))
    there.claim()
    here.keep(16, 32)
    here.say(SendRegions(6, "k", world.nodes[1].address))
    assert here.heard[-1] == RegionsSent(6, 32)
    assert len(world.carrier.pushes) == 2
    assert [kept.region.start for kept in there.claim()] == [0, 16], "the first again, under a new name"


@pytest.mark.parametrize("mode", ["breaks", "damages", "silent"])
def test_what_goes_wrong_on_the_way_is_told_and_leaves_no_room_behind(mode: str) -> None:
    world = Exchange(exchange__stall_timeout_s=1.0)
    here, _ = world.instances
    here.keep(0, 16)
    world.carrier.mode = mode
    here.say(SendRegions(5, "k", world.nodes[1].address))
    world.run(2.0)
    sent = here.heard[-1]
    assert isinstance(sent, RegionsSent)
    assert (sent.tokens, bool(sent.detail)) == (0, True)
    if mode == "silent":
        host = world.nodes[1].core.catalog.entries_of(world.nodes[0].address)[0].host
        world.nodes[1].told(RegionReceived(host.handle, host.generation, "nothing came"))
        world.run()
    assert len(world.nodes[1].core.catalog) == 0
    world.carrier.mode = ""
    here.say(SendRegions(6, "k", world.nodes[1].address))
    assert here.heard[-1] == RegionsSent(6, 16)


def expected_at(world: Exchange, node: int) -> tuple[int, int]:
    """The name of the room that this node has set aside for the other's region."""
    host = world.nodes[node].core.catalog.entries_of(world.nodes[1 - node].address)[0].host
    return host.handle, host.generation


@pytest.mark.parametrize("is_over", [False, True])
def test_a_copy_that_arrives_after_it_was_given_up_goes_with_its_request(is_over: bool) -> None:
    world = Exchange(exchange__stall_timeout_s=1.0)
    here, _ = world.instances
    kept = here.keep(0, 16)
    world.carrier.mode = "silent"
    here.say(SendRegions(5, "k", world.nodes[1].address))
    world.run(2.0)
    release = ReleaseRegion(kept.host.handle, kept.host.generation)
    if is_over:
        here.say(release)
    world.nodes[1].told(RegionReceived(*expected_at(world, 1)))
    world.run()
    if not is_over:
        assert len(world.nodes[1].core.catalog) == 1
        here.say(release)
        world.run()
    assert len(world.nodes[1].core.catalog) == 0


def test_copies_do_not_wait_for_what_is_awaited_here() -> None:
    """Each node has a copy under way to the other, of the same request."""
    world = Exchange(exchange__stall_timeout_s=1.0)
    here, there = world.instances
    here.keep(0, 16)
    own = there.keep(0, 16)
    there.say(SendRegions(5, "k", world.nodes[0].address))
    world.carrier.mode = "silent"
    here.say(SendRegions(6, "k", world.nodes[1].address))
    there.say(ReleaseRegion(own.host.handle, own.host.generation))
    world.run()
    assert [entry.writer for entry in world.nodes[0].core.catalog.entries_of_key("k")] == [here.address]


def test_no_room_there_is_told() -> None:
    world = Exchange()
    here, there = world.instances
    for index in range(16):
        there.keep(0, 16, key=f"full {index}")
    here.keep(0, 16)
    here.say(SendRegions(5, "k", world.nodes[1].address))
    assert here.heard[-1] == RegionsSent(5, 0, "n1 has no room")


def test_a_node_that_is_not_there_is_not_waited_for_long() -> None:
    world = Exchange(exchange__stall_timeout_s=1.0)
    here, _ = world.instances
    here.keep(0, 16)
    here.say(SendRegions(5, "k", Address("kvstore", "unknown", 1)))
    world.run(1.5)
    sent = here.heard[-1]
    assert isinstance(sent, RegionsSent)
    assert "nothing heard of unknown" in sent.detail


def test_a_node_that_dies_meanwhile_ends_the_copy_on_both_sides() -> None:
    for dead in (0, 1):
        world = Exchange(exchange__stall_timeout_s=30.0)
        here, _ = world.instances
        here.keep(0, 16)
        world.carrier.mode = "silent"
        here.say(SendRegions(5, "k", world.nodes[1].address))
        world.world.disconnect(world.nodes[0].address, world.nodes[1].address)
        world.run()
        assert here.heard[-1] == RegionsSent(5, 0, "n1 is gone")
        assert len(world.carrier.abandoned) == 1
        assert len(world.nodes[1].core.catalog) == 0, dead


def test_with_replication_a_lost_nodes_regions_are_found_at_the_other() -> None:
    world = Exchange(exchange__replicate=True)
    here, there = world.instances
    for span in ((0, 16), (16, 32)):
        here.keep(*span, priority=Priority.CHECKPOINT)
    world.run()
    assert {push.priority for push in world.carrier.pushes} == {Priority.CHECKPOINT}
    for gone in (here.address, world.nodes[0].address):
        world.world.kill(gone)
    world.run()
    assert [kept.region.stop for kept in there.claim()] == [16, 32]
    world.run(60)
    assert len(world.nodes[1].core.catalog) == 2, "claimed ones outlive their sender"


def test_second_copies_go_when_the_request_is_over() -> None:
    world = Exchange(exchange__replicate=True)
    here, _ = world.instances
    kept = [here.keep(*span) for span in ((0, 16), (16, 32))]
    world.run()
    assert len(world.nodes[1].core.catalog) == 2
    for one in kept:
        here.say(ReleaseRegion(one.host.handle, one.host.generation))
    world.run()
    assert len(world.sent(DropCopies)) == 1
    assert len(world.nodes[1].core.catalog) == 0


def test_second_copies_go_when_the_last_region_here_is_freed_with_its_writer() -> None:
    world = Exchange(exchange__replicate=True)
    here = world.instances[0]
    other = Instance(Address("instance", "other", 51), world, world.nodes[0])
    world.world.add(other.address, other)
    world.world.connect(other.address, world.nodes[0].address)
    here.keep(0, 16)
    region = Region(0, 2, 16, 32)
    here.say(ReserveRegion(2, D, 1, 1, region, UNIT, kv_dtype="fp32", weights_digest="w", key="k"))
    world.world.kill(here.address)  # which was writing: that room has no owner yet
    (kept,) = other.claim()
    other.say(ReleaseRegion(kept.host.handle, kept.host.generation))
    again = Instance(Address("instance", here.address.name, 52), world, world.nodes[0])
    world.world.add(again.address, again)
    world.world.connect(again.address, world.nodes[0].address)
    world.run()
    assert [len(node.core.catalog) for node in world.nodes] == [0, 0]


@pytest.mark.parametrize("nodes", [2, 3])
def test_nodes_that_have_each_others_copies_do_not_keep_them_for_ever(nodes: int) -> None:
    """An attempt of the same request runs at each, as after a partition."""
    world = Exchange(nodes, exchange__replicate=True)
    kept = [instance.keep(0, 16) for instance in world.instances]
    world.run()
    assert [len(node.core.catalog) for node in world.nodes] == [2] * nodes
    for instance, one in zip(world.instances, kept, strict=True):
        instance.say(ReleaseRegion(one.host.handle, one.host.generation))
    world.run()
    assert [len(node.core.catalog) for node in world.nodes] == [0] * nodes


def test_second_copies_are_not_copied_on() -> None:
    world = Exchange(nodes=3, exchange__replicate=True)
    world.instances[0].keep(0, 16)
    world.run(3)
    assert [len(node.core.catalog) for node in world.nodes] == [1, 1, 0]


def test_without_replication_nothing_is_sent() -> None:
    world = Exchange()
    world.instances[0].keep(0, 16)
    world.run(3)
    assert world.sent(Offer) == []


def test_a_request_that_is_unknown_here_is_sought_on_the_other_nodes() -> None:
    world = Exchange(nodes=3)
    world.instances[2].keep(0, 16)
    world.instances[2].keep(16, 32)
    (first, second) = world.instances[0].claim()
    assert [world.content(0, kept) for kept in (first, second)] == ["k 0-16", "k 16-32"]
    assert world.instances[1].claim("nowhere") == ()


def test_what_was_sought_and_not_claimed_goes_with_what_it_is_a_copy_of() -> None:
    world = Exchange(exchange__search_timeout_s=0.3, tier__orphan_grace_s=5.0)
    world.instances[1].keep(0, 16)
    world.carrier.mode = "silent"
    here = world.instances[0]
    here.say(FindRegions(7, "k", D, 1, 2, "w", "fp32"))
    world.run(0.5)
    assert here.heard[-1] == RegionsFound(7)
    (copy,) = world.nodes[0].core.catalog.entries_of(world.nodes[1].address)
    world.nodes[0].told(RegionReceived(copy.host.handle, copy.host.generation))
    world.run()
    assert len(world.nodes[0].core.catalog) == 1, "it came too late"
    world.world.kill(world.instances[1].address)
    world.run(6)
    assert [len(node.core.catalog) for node in world.nodes] == [0, 0]


def test_a_node_that_does_not_answer_is_not_waited_for() -> None:
    world = Exchange(exchange__search_timeout_s=0.3)
    world.world.pause(world.nodes[1].address)
    here = world.instances[0]
    here.say(FindRegions(7, "k", D, 1, 2, "w", "fp32"))
    assert here.heard[-1:] != [RegionsFound(7)]
    world.run(0.5)
    assert here.heard[-1] == RegionsFound(7)


def test_who_asks_again_on_a_new_stream_gets_what_the_broken_one_asked_for() -> None:
    """An answer to the old question would hand out the regions to an instance that waits for them no more."""
    world = Exchange(exchange__search_timeout_s=1.0)
    here, there = world.instances
    there.keep(0, 16)
    world.world.pause(world.nodes[1].address)
    here.say(FindRegions(7, "k", D, 1, 2, "w", "fp32"))
    world.world.connect(here.address, world.nodes[0].address)
    world.run()
    here.say(FindRegions(8, "k", D, 1, 2, "w", "fp32"))
    world.world.resume(world.nodes[1].address)
    world.run(0.5)
    (found,) = [message for message in here.heard if isinstance(message, RegionsFound)]
    assert found.ticket == 8
    assert {kept.region for kept in found.regions} == {Region(0, 2, 0, 16)}, "a copy for each question"


def test_a_newer_attempts_regions_are_not_given_to_an_older_one_elsewhere() -> None:
    world = Exchange()
    world.instances[1].keep(0, 16, attempt=5)
    assert world.instances[0].claim(attempt=4) == ()


def test_strangers_are_not_heard() -> None:
    world = Exchange()
    stranger = Address("kvstore", "s", 1)
    node = world.nodes[0]
    reservation = ReserveRegion(1, D, 1, 1, Region(0, 1, 0, 1), UNIT, "fp32", "w", key="k")
    assert node.receive(1.0, stranger, Offer(1, reservation, 5)) == []
    assert node.receive(1.0, stranger, RegionArrived(1)) == []
    assert len(node.core.catalog) == 0


def test_agents_travel_with_offers_and_takes_and_a_peer_that_is_gone_is_forgotten() -> None:
    world = Exchange(agent=AGENT)
    here, _ = world.instances
    here.keep(0, 16)
    here.say(SendRegions(5, "k", world.nodes[1].address))
    assert here.heard[-1] == RegionsSent(5, 16)
    assert [offer.agent for offer in world.sent(Offer)] == [AGENT]
    assert [push.agent for push in world.carrier.pushes] == [AGENT]
    assert world.carrier.forgotten == []
    world.world.disconnect(world.nodes[0].address, world.nodes[1].address)
    world.run()
    assert world.carrier.forgotten == [ForgetPeer(world.nodes[1].address), ForgetPeer(world.nodes[0].address)]


def test_without_an_agent_nothing_is_said_of_one() -> None:
    world = Exchange()
    here, _ = world.instances
    here.keep(0, 16)
    here.say(SendRegions(5, "k", world.nodes[1].address))
    world.world.disconnect(world.nodes[0].address, world.nodes[1].address)
    world.run()
    assert [offer.agent for offer in world.sent(Offer)] == [None]
    assert world.carrier.forgotten == []


def test_a_copy_of_a_copy_goes_with_it() -> None:
    world = Exchange(nodes=3, exchange__replicate=True, exchange__search_timeout_s=0.3)
    here, _, seeker = world.instances
    kept = here.keep(0, 16)
    world.run()
    world.carrier.mode = "silent"
    seeker.say(FindRegions(7, "k", D, 1, 2, "w", "fp32"))
    world.run(0.5)
    late = world.nodes[2].core.catalog
    senders = [late.entries_of(world.nodes[index].address) for index in (0, 1)]
    assert [len(entries) for entries in senders] == [1, 1]
    for (entry,) in senders:
        world.nodes[2].told(RegionReceived(entry.host.handle, entry.host.generation))
    world.run()
    here.say(ReleaseRegion(kept.host.handle, kept.host.generation))
    world.run()
    assert [len(node.core.catalog) for node in world.nodes] == [0, 0, 0]
