"""Receiving regions by one-sided writes: only what was announced, whole, and in its time."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.messages.types import Region
from dunlin.transport.one_sided.notices import (
    ChunkWritten,
    encode_notice,
)
from tests.transport.one_sided.network import CUT, Net


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


def test_an_unknown_token_opens_nothing_and_a_known_one_serves_once() -> None:
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
