"""The machines of one-sided transfers, over an agent of plain memory and with exact times."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import xxhash

from dunlin.messages.exchange import TransferAgent
from dunlin.messages.types import Priority, Region
from dunlin.transport.one_sided.inbound import InboundTransfers
from dunlin.transport.one_sided.notices import (
    ChunksDrained,
    ChunkWritten,
    LaneGranted,
    Notice,
    RegionFinished,
    WriteAbandoned,
    WriteRequested,
    decode_notice,
    encode_notice,
)
from dunlin.transport.one_sided.outbound import PER_PEER, OneSidedSend, OutboundTransfers
from dunlin.transport.one_sided.staging import StagingLayout, staging_layout
from dunlin.transport.payload import PayloadError, RegionHeader
from dunlin.transport.sockets.blocking import signed_digest
from tests.transport.fake_agent import FakeAgent, Hub

ROOM = 4096
CUT = StagingLayout(lanes=2, depth=2, chunk_bytes=64)
RECEIVERS = (WriteRequested, ChunkWritten, WriteAbandoned)


class End:
    """One process: an agent, a tier, both machines; what they told."""

    def __init__(self, hub: Hub, name: str, seed: int, cut: StagingLayout = CUT) -> None:
        self.room = bytearray(random.Random(seed).randbytes(ROOM))
        self.agent = FakeAgent(hub, name, cut)
        self.received: list[tuple[int, int, str]] = []
        self.sent: list[tuple[int, str]] = []
        self.heard: list[Notice] = []
        view = memoryview(self.room)
        self.inbound = InboundTransfers(view, self.agent, lambda *news: self.received.append(news))
        self.outbound = OutboundTransfers(view, self.agent, lambda *news: self.sent.append(news))

    def look(self, now_s: float) -> None:
        for name, data in self.agent.notices():
            notice = decode_notice(data)
            self.heard.append(notice)
            (self.inbound if isinstance(notice, RECEIVERS) else self.outbound).on_notice(name, notice, now_s)
        self.inbound.tick(now_s)
        self.outbound.tick(now_s)


class Net:
    """Ends that look in turn."""

    def __init__(self, *names: str, cut: StagingLayout = CUT) -> None:
        self.hub = Hub()
        self.ends = {name: End(self.hub, name, seed, cut) for seed, name in enumerate(names)}
        self.now_s = 0.0
        self.tickets = 0

    def __getitem__(self, name: str) -> End:
        return self.ends[name]

    def run(self, rounds: int = 60, step_s: float = 0.0) -> None:
        for _ in range(rounds):
            self.now_s += step_s
            for end in self.ends.values():
                end.look(self.now_s)

    def payload(self, source: str, offset: int, length: int, **overrides: Any) -> RegionHeader:
        self.tickets += 1
        plain = RegionHeader(
            bytes([self.tickets]) * 16, self.tickets, 1, Region(0, 2, 0, 9), "float32", b"c", length, 0
        )
        content = bytes(self[source].room[offset : offset + length])
        checksum = signed_digest(xxhash.xxh3_64_intdigest(plain.identity + content))
        return replace(plain, **{"checksum": checksum, **overrides})

    def send(self, source: str, target: str, length: int, at: int = 0, offset: int = 0, **lies: Any) -> RegionHeader:
        """Announce a region and submit it, with `lies` in what is sent."""
        payload = self.payload(source, offset, length)
        self[target].inbound.expect(payload, at, self[source].agent.descriptor, self.now_s)
        self.submit(source, target, replace(payload, **lies), offset)
        return payload

    def submit(
        self, source: str, target: str, payload: RegionHeader, offset: int = 0, priority: Any = Priority.KV
    ) -> None:
        what = OneSidedSend(payload.handle, self[target].agent.descriptor, payload, offset)
        self[source].outbound.submit(what, priority, self.now_s)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 129, 1000])
def test_a_region_of_any_length_arrives_where_it_was_expected(length: int) -> None:
    net = Net("a", "b")
    before = bytes(net["b"].room)
    net.send("a", "b", length, at=2048, offset=100)
    net.run()
    assert net["b"].received == [(1, 1, "")]
    assert net["a"].sent == [(1, "")]
    assert net["b"].room[2048 : 2048 + length] == net["a"].room[100 : 100 + length]
    assert bytes(net["b"].room[:2048] + net["b"].room[2048 + length :]) == before[:2048] + before[2048 + length :]
    assert net["a"].agent.most_at_once <= CUT.depth
    assert all(write.is_released for write in net["a"].agent.writes)


def test_regions_in_both_directions_and_more_senders_than_lanes() -> None:
    net = Net(*"abcdef")
    for turn in range(4):
        for name in "bcdef":
            net.send(name, "a", 300, at=1500 + 300 * turn, offset=turn)
            net.send("a", name, 200, at=2000 + 200 * turn)
    net.run(400)
    assert sorted(net["a"].received) == sorted((2 * number + 1, 1, "") for number in range(20))
    assert Counter(detail for _, detail in net["a"].sent) == {"": 20}
    assert not net["a"].inbound.is_moving
    assert not net["a"].outbound.is_moving
    assert len(net["a"].inbound) == len(net["a"].outbound) == 0


def test_the_urgent_ones_go_first() -> None:
    net = Net("a", "b")
    both_lanes = [net.send("a", "b", 500).handle for _ in range(CUT.lanes)]
    late = [net.payload("a", 0, 10) for _ in range(3)]
    for payload, priority in zip(late, (Priority.CHECKPOINT, Priority.KV, Priority.CHECKPOINT), strict=True):
        net["b"].inbound.expect(payload, 600, net["a"].agent.descriptor, 0.0)
        net.submit("a", "b", payload, priority=priority)
    net.run(100)
    began = [notice.token for notice in net["b"].heard if isinstance(notice, WriteRequested)]
    assert began[len(both_lanes) :] == [late[1].token, late[0].token, late[2].token]
    assert Counter(detail for _, detail in net["a"].sent) == {"": 5}


def test_a_peer_has_no_more_under_way_than_its_share_and_others_are_not_kept_waiting() -> None:
    net = Net("a", "b", "c", cut=StagingLayout(lanes=6, depth=2, chunk_bytes=64))
    for _ in range(7):
        net.send("a", "b", 100)
    net.send("a", "c", 100)
    assert len(net["b"].agent.arriving) == PER_PEER
    assert len(net["c"].agent.arriving) == 1
    net.run()
    assert Counter(detail for _, detail in net["a"].sent) == {"": 8}


@pytest.mark.parametrize(
    "lie",
    [
        {"handle": 40},
        {"generation": 2},
        {"region": Region(0, 2, 16, 65)},
        {"kv_dtype": "bfloat16"},
        {"chain": b"other"},
        {"length_bytes": 299},
        {"checksum": 5},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_what_differs_from_what_was_announced_is_not_taken(lie: dict[str, Any]) -> None:
    net = Net("a", "b")
    before = bytes(net["b"].room)
    net.send("a", "b", 300, **lie)
    net.run()
    assert net["b"].received == [(1, 1, "another region than was announced")]
    assert net["a"].sent[0][1] == "b refused it"
    assert net["b"].room == before
    assert net["a"].agent.writes == []


def test_bytes_that_changed_on_the_way_are_not_taken() -> None:
    net = Net("a", "b")
    net.send("a", "b", 300)
    net["a"].room[200] ^= 1
    net.run()
    assert net["b"].received == [(1, 1, "the bytes do not match their checksum")]
    assert net["a"].sent == [(1, "b refused it")]
    assert not net["b"].inbound.is_moving


def test_a_writer_that_scribbles_over_another_ones_lane_spoils_the_transfer_and_no_region() -> None:
    net = Net("a", "b", "mad")
    net.send("a", "b", 300)
    target = net["b"].agent
    net["a"].look(0.0)
    while not any(content for _, _, _, content, _ in target.arriving):
        net["b"].look(0.0)
        net["a"].look(0.0)
    scribble = ("mad", None, 0, bytes(CUT.lane_bytes), encode_notice(ChunkWritten(b"?" * 16, 0)))
    first = next(at for at, (_, _, _, content, _) in enumerate(target.arriving) if content)
    target.arriving.insert(first + 1, scribble)
    net.run()
    assert net["b"].received == [(1, 1, "the bytes do not match their checksum")]
    assert net["a"].sent == [(1, "b refused it")]
    net.send("a", "b", 300, at=1000)
    net.run()
    assert net["b"].received[1:] == [(2, 1, "")]


def test_a_token_that_nobody_gave_opens_nothing_and_one_serves_once() -> None:
    net = Net("a", "b")
    payload = net.send("a", "b", 100)
    net.run()
    net.submit("a", "b", payload)
    net.submit("a", "b", replace(payload, token=b"?" * 16))
    net.run()
    assert net["b"].received == [(1, 1, "")]
    assert [detail for _, detail in net["a"].sent] == ["", "b refused it", "b refused it"]


def test_a_token_serves_only_the_peer_it_was_given_to() -> None:
    net = Net("a", "b", "thief")
    payload = net.payload("a", 0, 100)
    net["b"].inbound.expect(payload, 0, net["a"].agent.descriptor, 0.0)
    net["b"].agent.add_peer(net["thief"].agent.descriptor)
    net.submit("thief", "b", payload)
    net.run()
    assert net["thief"].sent == [(1, "b refused it")]
    assert net["b"].received == []
    net.submit("a", "b", payload)
    net.run()
    assert net["b"].received == [(1, 1, "")]


def test_what_never_comes_is_told_after_its_time_and_not_before() -> None:
    net = Net("a", "b")
    net["b"].inbound.expect(net.payload("a", 0, 10), 0, net["a"].agent.descriptor, 0.0)
    net["b"].look(10.0)
    assert net["b"].received == []
    net["b"].look(10.1)
    assert net["b"].received == [(1, 1, "nothing came")]


def test_a_sender_that_stops_in_the_midst_is_given_up_and_its_lane_waits_for_late_writes() -> None:
    net = Net("a", "b")
    net.send("a", "b", 1000)
    net.run(3)
    assert net["b"].inbound.is_moving
    net["b"].look(4.9)
    assert net["b"].received == []
    net["b"].look(10.0)
    assert net["b"].received == [(1, 1, "stalled for 5 s")]
    assert net["b"].inbound.is_moving
    net["b"].look(20.1)
    assert not net["b"].inbound.is_moving


def test_a_receiver_that_says_nothing_is_left_and_met_again() -> None:
    net = Net("a", "b")
    net.send("a", "b", 300)
    net.send("a", "b", 200)
    second = net.send("a", "b", 100)
    net["a"].look(10.0)
    assert net["a"].sent == []
    net["a"].look(10.1)
    assert net["a"].sent == [(1, "b said nothing for 5 s"), (2, "b said nothing for 5 s")]
    assert net["a"].agent.left == ["b"]
    assert "b" in net["a"].agent.peers  # for the last one
    net.run()
    assert net["a"].sent[2:] == [(second.handle, "")]


def test_a_write_that_fails_is_told_at_once() -> None:
    net = Net("a", "b")
    net.send("a", "b", 1000)
    net.run(2)
    net["a"].look(0.0)
    net.hub.cut_off.add("b")
    net.run()
    assert "out of reach" in net["a"].sent[0][1]
    assert not net["a"].outbound.is_moving


def test_a_peer_that_is_gone_takes_everything_of_it_along() -> None:
    net = Net("a", "b")
    for _ in range(3):
        net.send("a", "b", 300)
    net.run(2)
    net["a"].outbound.peer_gone("b", "b is gone", 0.0)
    net["b"].inbound.peer_gone("a", "a is gone", 0.0)
    assert net["a"].sent == [(1, "b is gone"), (2, "b is gone"), (3, "b is gone")]
    assert sorted(net["b"].received) == [(1, 1, "a is gone"), (2, 1, "a is gone"), (3, 1, "a is gone")]
    assert not net["a"].outbound.is_moving
    assert not net["b"].inbound.is_moving


def test_abandoned_before_and_in_the_midst() -> None:
    net = Net("a", "b")
    before = net.payload("a", 0, 10)
    net["b"].inbound.expect(before, 0, net["a"].agent.descriptor, 0.0)
    net["b"].inbound.abandon(before.token, 0.0)
    midst = net.send("a", "b", 1000)
    net.run(3)
    net["b"].inbound.abandon(midst.token, 0.0)
    net.run()
    assert net["b"].received == [(1, 1, "abandoned"), (2, 1, "abandoned")]
    assert net["a"].sent == [(2, "b refused it")]
    net.run(1, step_s=11.0)
    assert not net["b"].inbound.is_moving
    net["b"].inbound.abandon(midst.token, 0.0)
    assert len(net["b"].received) == 2


def test_a_peer_whose_chunks_are_longer_than_ours_is_refused() -> None:
    net = Net("a", "b")
    payload = net.payload("a", 0, 10)
    longer = replace(net["b"].agent.descriptor, chunk_bytes=65)
    net["a"].outbound.submit(OneSidedSend(1, longer, payload, 0), Priority.KV, 0.0)
    assert "longer than ours" in net["a"].sent[0][1]


@pytest.mark.parametrize("field", ["lanes", "depth", "chunk_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1 << 40])
def test_memory_that_nobody_cuts_so_is_refused(field: str, value: int) -> None:
    sizes: Any = {"lanes": 1, "depth": 1, "chunk_bytes": 1, field: value}
    with pytest.raises(ValueError, match="lanes of"):
        staging_layout(TransferAgent("a", b"", 0, **sizes))


def test_notices_survive_their_bytes_and_damage_never_makes_one_of_another_token() -> None:
    token = bytes(range(16))
    payload = RegionHeader(token, 3, 9, Region(1, 2, 3, 4), "bfloat16", b"c" * 16, 77, -5)
    short: list[Notice] = [
        LaneGranted(token, 3),
        ChunkWritten(token, 9),
        ChunksDrained(token, 4),
        RegionFinished(token, 1),
        WriteAbandoned(token),
    ]
    draw = random.Random(5)
    for notice in [WriteRequested(payload), *short]:
        data = encode_notice(notice)
        assert decode_notice(data) == notice
        for _ in range(300):
            damaged = bytearray(data[: draw.choice((len(data), len(data), draw.randrange(len(data))))])
            if damaged:
                damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
            try:
                found = decode_notice(bytes(damaged))
            except PayloadError:
                continue
            assert encode_notice(found)[: len(damaged)] == bytes(damaged)
    for data in (b"", b"z" * 25, b"b", b"g" + token):
        with pytest.raises(PayloadError):
            decode_notice(data)


def test_lost_and_repeated_notices_never_make_a_wrong_region() -> None:
    for seed in range(150):
        draw = random.Random(seed)
        net = Net("a", "b", "c")
        sent = [net.send(draw.choice("ac"), "b", draw.randrange(1, 700), at=700 * i) for i in range(5)]
        for _ in range(300):
            for end in net.ends.values():
                kept = []
                for one in end.agent.arriving:
                    kept += [one] * draw.choice((0, 1, 1, 1, 1, 1, 1, 1, 2))
                draw.shuffle(kept)
                end.agent.arriving = kept
            net.run(1, step_s=0.3)
        whole = {handle for handle, _, detail in net["b"].received if not detail}
        assert len(net["b"].received) == len(sent), f"seed {seed}"
        for number, payload in enumerate(sent):
            content = bytes(net["b"].room[700 * number : 700 * number + payload.length_bytes])
            matches = signed_digest(xxhash.xxh3_64_intdigest(payload.identity + content)) == payload.checksum
            assert matches or payload.handle not in whole, f"seed {seed}"
        assert len(net["a"].sent) + len(net["c"].sent) == len(sent), f"seed {seed}"
        assert not any(end.inbound.is_moving or end.outbound.is_moving for end in net.ends.values()), f"seed {seed}"
