"""Which dispatcher hears of an engine that crashed in a group's step when the group was over already."""

from typing import Any

import pytest

from dunlin.effects import Address, Gone
from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import Adopt, Adopted, Suspected
from dunlin.messages.engine import EngineExited
from dunlin.messages.group import GuestReassigned
from dunlin.messages.plan import GroupOrder
from dunlin.messages.types import GroupKind, GroupRole
from tests.services.instance.bench import ENGINE, MANAGER, Silent
from tests.services.instance.group.group_bench import GROUP as BENCH_GROUP
from tests.services.instance.group.group_bench import GroupBench
from tests.services.instance.group.member_bench import GROUP, GUEST, LEADER, group_step, member, open_guest

ADOPTER = Address("dispatcher", "adopter", 60)


def test_the_one_that_adopted_the_request_hears_of_it() -> None:
    bench = GroupBench(2, slots=128, groups__policy="widest")
    adopter = Silent()
    bench.world.add(ADOPTER, adopter)
    for address in bench.addresses:
        bench.world.connect(ADOPTER, address)
    attempt = bench.place(tokens=150, max_tokens=30, key="req")
    bench.run(0.25)
    assert attempt.tokens
    prompt = list(attempt.place.tokens)
    chain = prefix_hash.chain_of(prefix_hash.chain_root("", ""), prompt, len(prompt))
    bench.world.post(ADOPTER, bench.leader, Adopt(41, 5, "req", "", len(prompt), 0, chain))
    bench.run(0.01)
    assert any(isinstance(message, Adopted) for _, message in adopter.heard)
    bench.supervisors[1].engine.is_stuck = True
    bench.run(0.05)
    alone = GroupOrder(1, 9, BENCH_GROUP + 1, GroupKind.LOCAL, GroupRole.LOCAL, (bench.addresses[1],))
    bench.world.post(MANAGER, bench.addresses[1], alone)
    bench.run(0.01)
    bench.supervisors[1].crash(11)
    bench.run(0.05)
    assert [(each.request, each.attempt) for _, each in adopter.heard if isinstance(each, Suspected)] == [(41, 5)]


@pytest.mark.parametrize("waits", [False, True], ids=["open", "opened anew"])
def test_a_member_tells_the_dispatcher_that_it_was_told_last(waits: bool) -> None:
    direct: Any = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    if waits:
        direct.give(LEADER, open_guest(60, held_start=[0], held_stop=[30], elsewhere_tokens=30))
    direct.give(LEADER, GuestReassigned(GROUP, GUEST, ADOPTER, 41, 5))
    direct.give(LEADER, Gone("killed"))
    direct.give(ENGINE, EngineExited(0, incarnation=0, signal=11))
    told = [send for send in direct.give(ENGINE, Gone("died")) if isinstance(send.message, Suspected)]
    assert [(each.to, each.message.request, each.message.attempt) for each in told] == [(ADOPTER, 41, 5)]


def test_the_word_of_an_older_leader_changes_nothing() -> None:
    direct: Any = member()
    direct.give(LEADER, open_guest(60))
    stale = direct.core.report().stale_total
    direct.give(LEADER, GuestReassigned(GROUP + 1, GUEST, ADOPTER, 41, 5))
    assert direct.core.report().stale_total == stale + 1
    guest = direct.core.group_member.steps.guests.get(GUEST)
    assert guest.opened.dispatcher != ADOPTER
