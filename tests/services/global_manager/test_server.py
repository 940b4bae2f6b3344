"""A manager that slept: whatever it reads first when it wakes, it gives no order of a term that is over."""

import asyncio
from typing import Any

import pytest

from dunlin.effects import Address, Joined, sends
from dunlin.membership import election
from dunlin.membership.election import Election
from dunlin.membership.lease_keeper import boot_clock_s
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.plan import DrainOutcome, DrainReply, DrainRequest, GroupOrder
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.core import GlobalManagerCore
from services.global_manager.server import ELECTION_PREFIX, TermGuard
from tests.membership.helpers import until
from tests.membership.scripted_etcd import REVISION, ScriptedEtcd, ScriptedWatch

ME = Address("global_manager", "g", 2)
MONITOR = Address("monitor", "m", 3)
TOOL = Address("client", "tool-1")
I0, I1 = Address("instance", "i0", 10), Address("instance", "i1", 11)
VIEW = FleetView(1, tuple(MemberView(each, ready=True, capacity_slots=9, free_slots=9) for each in (I0, I1)))


class Woken:
    """Stands for the host: the guard wakes it when a term begins or ends."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def deliver(self, sender: Address, message: Any) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_manager_that_slept_through_its_term_orders_nothing_whatever_it_reads_first(
    monkeypatch: pytest.MonkeyPatch, sleeps: bool
) -> None:
    monkeypatch.setattr(election, "PrefixWatch", ScriptedWatch)

    async def scenario() -> None:
        slept_s = 0.0
        etcd, host = ScriptedEtcd(), Woken()
        guard = TermGuard(GlobalManagerCore(ME, GlobalManagerConfig()))
        standing = Election(
            etcd, ELECTION_PREFIX, "one", guard.changed, ttl_s=600, clock=lambda: boot_clock_s() + slept_s
        )
        guard.follow(standing, host)  # type: ignore[arg-type]
        standing.start()
        await until(lambda: etcd.leases == 1)
        etcd.show(ELECTION_PREFIX)
        await until(lambda: standing.epoch() == REVISION)
        assert len(host.messages) == 1, "the host is to ask the guard"
        guard.receive(0.0, I0, Joined())
        guard.receive(0.0, I1, Joined())
        slept_s = 3600.0 if sleeps else 0.0
        # No await in between: as after a SIGCONT, when what came in is read before etcd is heard.
        sent = sends(guard.receive(1.0, MONITOR, VIEW))
        assert {send.to for send in sent if isinstance(send.message, GroupOrder)} == (set() if sleeps else {I0, I1})
        answers = [send.message for send in sends(guard.receive(1.0, TOOL, DrainRequest("i0")))]
        (reply,) = [message for message in answers if isinstance(message, DrainReply)]
        assert (reply.outcome is DrainOutcome.NOT_LEADER) == sleeps
        await standing.stop()

    asyncio.run(scenario())
