"""Sending and receiving sides of one-sided transfers together, over plain memory and at exact times."""

import random
from collections import Counter

import pytest
import xxhash

from dunlin.kv.region_identity import signed_digest
from tests.transport.one_sided.network import CUT, Net


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
