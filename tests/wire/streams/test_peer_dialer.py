import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dunlin.effects import Address, Gone, Joined
from dunlin.messages.dispatch import Cancel
from dunlin.messages.group import DIALING, DialPeer
from dunlin.messages.membership import Member, MemberDown, MembersReset, MemberUp
from dunlin.wire.envelopes import DISPATCH
from dunlin.wire.streams.peer_dialer import PeerDialer
from tests.wire.ends import DISPATCHER, INSTANCE, QUICK, End, accepting, eventually, run

NOWHERE = "127.0.0.1:1"


def member(address: Address = INSTANCE, endpoint: str = NOWHERE, node: str = "here") -> Member:
    return Member(address, endpoint, node, pid=1)


@asynccontextmanager
async def dispatcher(same_node: tuple[str, ...] = ()) -> AsyncIterator[tuple[End, PeerDialer]]:
    end = End(DISPATCHER)
    dialing = PeerDialer(
        end.host, {"instance": DISPATCH, "dispatcher": DISPATCH}, node="here", same_node=same_node, backoff=QUICK
    )
    yield end, dialing
    await dialing.stop()
    assert dialing.wanted_peers == []
    assert end.errors == []


def test_a_registration_that_ends_leaves_the_stream_open_and_no_new_one_is_tried() -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), dispatcher() as (end, dialing):
            dialing.apply(MemberUp(member(endpoint=endpoint)))
            await end.core.until(1)
            await instance.core.until(1)
            dialing.apply(MemberDown(INSTANCE))
            assert end.host.send(INSTANCE, Cancel(1, 1))
            assert await instance.core.until(2) == [Joined(), Cancel(1, 1)]
            instance.host.detach(DISPATCHER, "told to")
            await eventually(lambda: dialing.wanted_peers == [])
            assert [type(message) for message in end.core.messages] == [Joined, Gone]

    run(scenario)


def test_a_member_that_comes_up_again_is_dialled_again() -> None:
    async def scenario() -> None:
        async with accepting() as (_, endpoint), dispatcher() as (end, dialing):
            dialing.apply(MemberUp(member()))
            dialing.apply(MemberDown(INSTANCE))
            dialing.apply(MemberUp(member(endpoint=endpoint)))
            await end.core.until(1)
            assert end.core.messages == [Joined()]
            assert dialing.wanted_peers == [INSTANCE]
            dialing.apply(MemberDown(INSTANCE))
            dialing.apply(MemberUp(member(endpoint=endpoint)))
            end.host.detach(INSTANCE, "broken")
            assert [type(message) for message in await end.core.until(3)] == [Joined, Gone, Joined]

    run(scenario)


def test_a_reset_ends_the_attempts_to_reach_peers_that_are_not_in_it() -> None:
    async def scenario() -> None:
        other = Address("instance", "other", 9)
        async with dispatcher() as (_, dialing):
            dialing.apply(MembersReset((member(), member(other))))
            assert dialing.wanted_peers == [INSTANCE, other]
            dialing.apply(MembersReset((member(other),)))
            await eventually(lambda: dialing.wanted_peers == [other])

    run(scenario)


def test_strangers_roles_and_oneself_are_not_dialled() -> None:
    async def scenario() -> None:
        async with dispatcher() as (_, dialing):
            dialing.apply(MembersReset((member(DISPATCHER), member(Address("kvstore", "k", 4)))))
            dialing.apply(MemberUp(member(Address("dispatcher", DISPATCHER.name, 99))))
            assert dialing.wanted_peers == [Address("dispatcher", DISPATCHER.name, 99)]

    run(scenario)


def test_a_role_of_the_same_node_is_dialled_there_alone() -> None:
    async def scenario() -> None:
        far, near = Address("instance", "far", 4), Address("instance", "near", 5)
        async with dispatcher(same_node=("instance",)) as (_, dialing):
            dialing.apply(MembersReset((member(far, node="there"), member(near))))
            assert dialing.wanted_peers == [near]

    run(scenario)


def test_stopping_ends_open_streams() -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), dispatcher() as (end, dialing):
            dialing.apply(MemberUp(member(endpoint=endpoint)))
            await instance.core.until(1)
            await end.core.until(1)
            await dialing.stop()
            assert isinstance(end.core.messages[-1], Gone)
            assert isinstance((await instance.core.until(2))[1], Gone)
            await asyncio.sleep(0.1)
            assert len(instance.core.messages) == 2

    run(scenario)


def test_a_peer_on_demand_is_dialled_when_the_core_asks_and_not_again_by_itself() -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint):
            end = End(DISPATCHER)
            dialing = PeerDialer(end.host, {}, backoff=QUICK, on_demand={"instance": DISPATCH})
            end.host.attach(DIALING, dialing)
            await end.core.until(1)
            end.host.send(DIALING, DialPeer(INSTANCE))
            assert dialing.wanted_peers == []  # nobody of that name is registered
            dialing.apply(MemberUp(member(endpoint=endpoint)))
            assert dialing.wanted_peers == []
            end.host.send(DIALING, DialPeer(INSTANCE))
            await instance.core.until(1)
            await end.core.until(2)
            end.host.send(DIALING, DialPeer(INSTANCE))
            assert dialing.wanted_peers == [INSTANCE]
            instance.host.detach(DISPATCHER, "told to")
            await eventually(lambda: dialing.wanted_peers == [])
            await asyncio.sleep(0.1)
            assert [type(message) for message in end.core.messages] == [Joined, Joined, Gone]
            end.host.send(DIALING, DialPeer(INSTANCE))
            assert isinstance((await end.core.until(4))[-1], Joined)
            await dialing.stop()

    run(scenario)


def test_a_peer_that_joined_by_itself_is_not_dialled() -> None:
    async def scenario() -> None:
        end = End(DISPATCHER)
        dialing = PeerDialer(end.host, {}, backoff=QUICK, on_demand={"instance": DISPATCH})
        dialing.apply(MemberUp(member()))
        end.host.attach(INSTANCE, dialing)
        dialing.send(DialPeer(INSTANCE))
        assert dialing.wanted_peers == []
        end.host.detach(INSTANCE)
        dialing.send(DialPeer(INSTANCE))
        assert dialing.wanted_peers == [INSTANCE]
        await dialing.stop()

    run(scenario)
