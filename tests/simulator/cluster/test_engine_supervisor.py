"""The supervisor of an engine: it ends and restarts processes, maps memory, and counts over all of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined, Message
from dunlin.messages.engine import EngineExited, EngineReady, MapHost, Step, StepDone, StopEngine, TransferDone
from dunlin.messages.types import HostRegion, TransferStatus, Why
from simulator.cluster.engine_supervisor import UNTRUSTED_SIGNALS, SimulatedEngineSupervisor, tenant_lookup
from simulator.cluster.world import World
from simulator.engine.host_memory import SimulatedHostMemory
from simulator.engine.model import engine_settings
from tests.services.instance.bench import MANAGER, make_order, of
from tests.services.instance.group.member_bench import GUEST, LEADER, answered, group_step, member, open_guest
from tests.simulator.engine.engine_bench import ENGINE, ME, Bench, move_of, open_of, step_of, written


def heard(bench: Bench) -> list[tuple[float, Message]]:
    """The answers, without the ends of streams."""
    return [(at_s, message) for at_s, message in bench.heard if not isinstance(message, Gone)]


def test_an_order_to_stop_ends_the_engine_and_starts_the_next_one() -> None:
    bench = Bench(restart_s=0.5, load_s=0.25)
    first = bench.engine
    bench.tell(StopEngine(Why("test")), at_s=1.0)
    bench.world.run_to(2.4)
    assert heard(bench) == [(1.0, EngineExited(0, 9, True, 0.5, 1))]
    assert (bench.supervisor.ended, bench.engine is first) == ([first], True)
    bench.run()
    assert heard(bench)[1:] == [(1.0 + 0.5 + 0.25, bench.engine.ready)]
    assert bench.engine is not first


@pytest.mark.parametrize("signal", [9, 15, *UNTRUSTED_SIGNALS])
def test_signals_of_wild_writes_end_the_trust_in_the_kv_cache(signal: int) -> None:
    bench = Bench()
    bench.supervisor.crash(signal)
    assert bench.supervisor.is_trusted is (signal not in UNTRUSTED_SIGNALS)


def test_an_engine_that_does_not_return_waits_for_its_restart() -> None:
    bench = Bench(restart_s=0.5)
    bench.supervisor.crash(returns=False)
    bench.run()
    assert [type(message) for _, message in heard(bench)] == [EngineExited]
    bench.supervisor.restart()
    bench.world.run_to(70.0)
    assert [type(message) for _, message in heard(bench)] == [EngineExited, EngineReady]


def test_messages_to_an_engine_that_is_down_are_lost() -> None:
    bench = written(restart_s=0.5)
    bench.supervisor.crash()
    bench.tell(open_of(2), step_of(2, (2, 0, 10)))
    assert [message.step for _, message in bench.of(StepDone)] == [1]
    assert bench.engine.open_sequences == []


def test_busy_seconds_and_moved_bytes_count_all_engines() -> None:
    bench = written(restart_s=0.5)
    bench.tell(move_of(1))
    bench.run()
    assert (bench.supervisor.busy_s, bench.supervisor.moved_bytes) == pytest.approx((0.08, 640))
    bench.supervisor.crash()
    bench.world.run_to(70.0)
    bench.tell(open_of(2), step_of(2, (2, 0, 10)))
    bench.world.run_to(90.0)
    assert (bench.supervisor.busy_s, bench.supervisor.moved_bytes) == pytest.approx((0.16, 640))


def mapping(memories: dict[int, SimulatedHostMemory], tier: SimulatedHostMemory) -> World:
    """An engine whose `MapHost` names a memory by its incarnation."""
    world = World(0.0)

    class Silent:
        def receive(self, now_s: float, sender: Address, message: Message) -> list[Any]:
            assert isinstance(message, Joined | EngineReady | TransferDone)
            return []

    world.add(ME, Silent())
    SimulatedEngineSupervisor(world, ME, engine_settings(), tier, memory_of=lambda wish: memories.get(wish.incarnation))
    return world


def test_engines_write_into_the_memory_that_was_mapped_last() -> None:
    memories, tier = {1: SimulatedHostMemory(), 2: SimulatedHostMemory()}, SimulatedHostMemory()
    world = mapping(memories, tier)
    for incarnation in (1, 2, 3):  # there is no third one: the mapping stays
        world.post(ME, ENGINE, MapHost("/tier", 1 << 20, incarnation))
        world.run_to(float(incarnation))
    tier.write(HostRegion(1, 1, 0, 64), [5])
    assert (memories[1].contents, memories[2].contents) == ({}, {0: [5]})


def test_a_copy_before_any_memory_is_mapped_fails_loudly() -> None:
    bench = written()
    bench.tell(move_of(1))
    assert [done.status for _, done in bench.of(TransferDone)] == [TransferStatus.OK]
    bench.supervisor.crash()
    bench.world.run_to(70.0)
    bench.tell(move_of(2))
    with pytest.raises(Exception, match="no host tier is mapped"):
        bench.world.run_to(90.0)


def test_the_audit_learns_a_tenant_by_the_number_of_the_sequence() -> None:
    sequence = SimpleNamespace(place=SimpleNamespace(tenant="ann"))
    core: Any = SimpleNamespace(sequences=SimpleNamespace(by_number={7: sequence}.get))
    tenant_of = tenant_lookup(core)
    assert [tenant_of(7), tenant_of(8)] == ["ann", ""]


def test_a_guest_given_up_while_its_step_is_outstanding_is_its_request_s_until_the_answer() -> None:
    direct = member()
    tenant_of = tenant_lookup(direct.core)
    direct.give(LEADER, open_guest(110))
    (step,) = of(Step, direct.give(LEADER, group_step(1, [(GUEST, 0, 40)])))
    assert tenant_of(GUEST) == "request k"
    direct.give(MANAGER, make_order(plan_version=3))
    assert (direct.core.group_member.steps.guests.get(GUEST), tenant_of(GUEST)) == (None, "request k")
    direct.give(ENGINE, answered(step.step))
    assert tenant_of(GUEST) == ""


def test_answers_name_the_engine_s_life_and_its_stream_does_not() -> None:
    bench, said = Bench(restart_s=0.5), list[tuple[Address, type[Message]]]()
    bench.world.before = lambda event: said.append((event.sender, type(event.message))) if event.to == ME else None
    bench.tell(open_of(1), step_of(1, (1, 0, 10)), at_s=0.1)
    bench.world.run_to(2.0)
    bench.supervisor.crash()
    bench.world.run_to(4.0)
    lives = [ENGINE._replace(incarnation=number) for number in (1, 2)]
    assert said == [
        (lives[0], StepDone),
        (ENGINE, Gone),
        (ENGINE, EngineExited),
        (ENGINE, Joined),
        (lives[1], EngineReady),
    ]


def test_the_last_words_of_an_engine_come_again_after_the_first_of_its_successor() -> None:
    bench = Bench(restart_s=0.5)
    bench.tell(open_of(1), step_of(1, (1, 0, 10)), at_s=0.1)
    bench.world.run_to(2.0)
    bench.supervisor.crash()
    bench.supervisor.repeat_last_words()
    bench.heard.clear()
    senders: list[Address] = []
    bench.world.before = lambda event: senders.append(event.sender) if event.to == ME else None
    bench.run()
    assert [type(message) for _, message in heard(bench)] == [EngineExited, EngineReady, EngineReady, StepDone]
    assert senders[-2:] == [ENGINE._replace(incarnation=1)] * 2
