"""Sending regions by one-sided writes: urgent ones first, a share per peer, and peers that fail or stay silent."""

from collections import Counter
from dataclasses import replace

from dunlin.messages.types import Priority
from dunlin.transport.one_sided.notices import (
    WriteRequested,
)
from dunlin.transport.one_sided.outbound import PER_PEER, OneSidedSend
from dunlin.transport.one_sided.staging import StagingLayout
from tests.transport.one_sided.network import CUT, Net


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


def test_a_peer_whose_chunks_are_longer_than_ours_is_refused() -> None:
    net = Net("a", "b")
    payload = net.payload("a", 0, 10)
    longer = replace(net["b"].agent.descriptor, chunk_bytes=65)
    net["a"].outbound.submit(OneSidedSend(1, longer, payload, 0), Priority.KV, 0.0)
    assert "longer than ours" in net["a"].sent[0][1]
