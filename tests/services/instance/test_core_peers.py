"""The instance's core and its peers: engines that die or hang, dispatchers that leave, orders, reports."""

from itertools import pairwise
from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined, Message
from dunlin.messages.dispatch import (
    Cancel,
    Ended,
    Returned,
)
from dunlin.messages.engine import Close, EngineExited, EngineFailed, EngineProgress, MapHost, StopEngine, Unsupported
from dunlin.messages.fleet import InstanceReport
from dunlin.messages.plan import GroupOrder, GroupOrderDone, GroupOrderRefused
from dunlin.messages.pool import TierReady
from dunlin.messages.types import GroupKind, GroupRole, i32
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import (
    ENGINE,
    LATENCY_S,
    MANAGER,
    ME,
    MONITOR,
    Bench,
    D,
    Direct,
    done,
    figures,
    make_order,
    make_place,
    of,
    only,
    ready_core,
)

# --- the engine ---


def test_a_dead_engine_that_will_not_be_back_soon_gives_everything_back_with_the_reason() -> None:
    bench = Bench(engine={"slots": 32, "restart_s": 0.5}, recovery__engine_grace_s=0.4)
    attempts = [bench.place(request, tokens=12, max_tokens=12) for request in (1, 2)]
    bench.run(0.03)
    bench.seat.crash()
    crashed_s = bench.world.now_s
    bench.run(0.1)
    assert [(message.request, message.attempt) for message in bench.dispatcher.of(Returned)] == [(1, 1), (2, 1)]
    assert bench.dispatcher.times(Returned)[0] == pytest.approx(crashed_s + 2 * LATENCY_S)
    assert all(
        message.why is not None and "stream reset" in message.why.chosen for message in bench.dispatcher.of(Returned)
    )
    assert not bench.core.report().ready
    bench.run(0.6)
    assert bench.core.report().engine_restarts_total == 1
    again = [bench.again(attempt) for attempt in attempts]
    bench.run_until_quiet()
    bench.check_empty()
    assert all(attempt.tokens == attempt.expected for attempt in again)


def test_an_engine_that_says_it_failed_is_lost_when_it_is_gone() -> None:
    direct = ready_core()
    direct.give(D, make_place())
    assert direct.give(ENGINE, EngineFailed("out of memory in layer 3")) == []
    assert direct.give(ENGINE, EngineExited(3, back_in_s=60.0)) == []
    returned = only(Returned, direct.give(ENGINE, Gone("out of memory in layer 3 (exit code 3)")))
    assert returned.why is not None
    assert "out of memory in layer 3" in returned.why.chosen
    assert direct.core.report().engine_restarts_total == 1


def test_an_engine_without_progress_is_ended_after_three_seconds() -> None:
    bench = Bench()
    bench.place(tokens=10, max_tokens=200)
    bench.run(0.5)
    bench.engine.is_stuck = True
    stuck_s = bench.world.now_s
    assert bench.world.run(lambda: bool(bench.sent(StopEngine)), for_s=10)
    assert 2.9 <= bench.world.now_s - stuck_s <= 3.3
    stop = bench.sent(StopEngine)[0]
    assert figures(stop.why)["limit_s"] == 3.0
    bench.run_until_quiet()
    assert bench.dispatcher.of(Returned) == []
    assert bench.core.report().revived_tokens_total > 10


def test_a_long_step_that_passes_safepoints_is_no_hang() -> None:
    direct = ready_core()
    direct.give(D, make_place())
    for tenth in range(1, 100):
        assert direct.give(ENGINE, EngineProgress(tenth // 10), tenth / 10) == []


def test_an_idle_engine_is_not_stuck() -> None:
    direct = ready_core()
    for tenth in range(1, 100):
        assert not of(StopEngine, direct.give(ENGINE, EngineProgress(7), tenth / 10))


def test_an_instance_that_slept_forgives_its_engine() -> None:
    direct = ready_core()
    direct.give(D, make_place())
    direct.give(ENGINE, EngineProgress(7), 0.1)
    for now_s in (60.0, 60.1, 62.0):
        assert not of(StopEngine, direct.give(ENGINE, EngineProgress(7), now_s))


def test_an_engine_that_refuses_what_it_was_not_told_is_ended() -> None:
    direct = ready_core()
    direct.give(D, make_place())
    for unknown in (Unsupported("Step", "a stride", step=9), Unsupported("Transfer", "a peer", ticket=9)):
        stop = only(StopEngine, direct.give(ENGINE, unknown))
        assert unknown.detail in stop.why.rejected[0].reason
    assert direct.core.steps.outstanding == 2


def test_the_sequences_of_a_refused_step_are_returned_with_the_reason() -> None:
    direct = ready_core()
    direct.give(D, make_place())
    sends = direct.give(ENGINE, Unsupported("Step", "a stride", step=1))
    assert of(StopEngine, sends) == []
    returned = only(Returned, sends)
    assert (returned.request, returned.why.rejected[0].reason) == (1, "Step: a stride")
    assert only(Close, sends).sequence == 1
    assert len(direct.core.sequences) == 1
    assert direct.core.slot_table.free < 256, "step 2 may write yet"
    direct.give(ENGINE, done(2, dropped=(1,)))
    assert [len(direct.core.sequences), direct.core.slot_table.free] == [0, 256]


def test_a_cancelled_sequence_ends_when_its_steps_are_refused() -> None:
    direct = ready_core()
    direct.give(D, make_place())
    direct.give(D, Cancel(1, 1))
    assert direct.give(ENGINE, Unsupported("Step", "a stride", step=1)) == []
    sends = direct.give(ENGINE, Unsupported("Step", "a stride", step=2))
    assert (only(Ended, sends).request, of(Returned, sends)) == (1, [])


def test_a_refusal_of_an_engine_that_is_gone_does_not_end_the_next_one() -> None:
    direct = ready_core()
    direct.give(ENGINE, EngineExited(0, 9))
    direct.give(ENGINE, Gone("killed"))
    assert direct.give(ENGINE, Unsupported("Step", "a stride", step=1)) == []


def test_a_refused_remap_changes_nothing() -> None:
    assert ready_core().give(ENGINE, Unsupported("Remap", "one layer is all", layout=1)) == []


# --- the fence of the engine's incarnation ---


def test_events_of_an_older_engine_change_nothing_and_are_counted() -> None:
    direct = ready_core()
    older, newer = (Address(ENGINE.role, ENGINE.name, life) for life in (1, 2))
    direct.give(newer, make_engine_ready())
    direct.give(D, make_place())
    assert direct.give(older, done(1, (1, 5))) == []
    assert direct.give(older, Gone("late")) == []
    assert (direct.core.report().stale_total, direct.core.steps.outstanding, direct.core.report().ready) == (2, 2, True)
    direct.give(newer, done(1, (1, 5)))
    assert direct.core.report().tokens_total == 1


@pytest.mark.parametrize(("has_spoken", "stream_ended"), [(True, True), (False, True), (False, False)])
def test_an_engine_that_ended_is_not_heard_though_the_next_one_has_said_nothing(
    has_spoken: bool, stream_ended: bool
) -> None:
    """Its `EngineReady` would have the host tier mapped by an engine that is not there."""
    direct = Direct()
    first, second = (Address(ENGINE.role, ENGINE.name, life) for life in (1, 2))
    direct.give(Address("kvstore", "k", 3), TierReady("/tier", 1 << 20))
    if has_spoken:
        direct.give(first, make_engine_ready())
    direct.give(ENGINE, EngineExited(0, 9, incarnation=1))
    if stream_ended:
        direct.give(ENGINE, Gone("killed"))
    assert direct.give(first, make_engine_ready()) == []
    assert (direct.core.report().stale_total, direct.core.report().ready) == (1, False)
    assert only(MapHost, direct.give(second, make_engine_ready())).size_bytes == 1 << 20
    assert direct.core.report().ready


def test_a_row_that_the_engine_lost_is_given_back() -> None:
    direct = ready_core()
    direct.give(D, make_place())
    sends = direct.give(ENGINE, done(1, dropped=(1,)))
    assert only(Returned, sends).request == 1


# --- dispatchers come and go ---


def test_a_lost_dispatchers_requests_go_on_for_their_grace_and_no_longer() -> None:
    direct = ready_core()
    direct.give(D, make_place(max_tokens=100))
    direct.give(D, Gone("reset"), 5.0)
    (due,) = [timer for timer in direct.timers if timer.delay_s == 30.0]
    assert len(direct.core.sequences) == 1
    direct.give(ME, due.message, 35.0)
    assert direct.core.sequences.running_count == 0


def test_a_dispatcher_that_comes_back_in_time_keeps_its_requests() -> None:
    direct = ready_core()
    direct.give(D, make_place(max_tokens=100))
    direct.give(D, Gone("reset"), 5.0)
    direct.give(D, Joined(), 10.0)
    direct.give(D, Gone("reset"), 20.0)
    first, second = [timer for timer in direct.timers if timer.delay_s == 30.0]
    direct.give(ME, first.message, 35.0)
    assert direct.core.sequences.running_count == 1
    direct.give(ME, second.message, 50.0)
    assert direct.core.sequences.running_count == 0


def test_a_grace_ends_when_the_dispatcher_is_back() -> None:
    direct = ready_core()
    direct.give(D, make_place(max_tokens=100))
    direct.give(D, Gone("reset"), 5.0)
    (due,) = [timer for timer in direct.timers if timer.delay_s == 30.0]
    direct.give(D, Joined(), 10.0)
    direct.give(ME, due.message, 35.0)
    assert direct.core.sequences.running_count == 1


# --- orders ---


def test_orders_are_fenced_by_epoch_and_plan_version() -> None:
    direct = ready_core()
    assert only(GroupOrderDone, direct.give(MANAGER, make_order(epoch=3, plan_version=2))) == GroupOrderDone(3, 2)
    for epoch, version in ((3, 1), (2, 9)):
        refused = only(GroupOrderRefused, direct.give(MANAGER, make_order(epoch=epoch, plan_version=version)))
        assert "stale" in refused.reason
    assert only(GroupOrderDone, direct.give(MANAGER, make_order(epoch=3, plan_version=2))) == GroupOrderDone(3, 2)
    report = direct.core.report()
    assert (report.epoch, report.plan_version, report.group, report.stale_total) == (3, 2, 1, 2)


@pytest.mark.parametrize(
    "wanted",
    [
        {"kind": GroupKind.RING},
        {"part": GroupRole.MASTER},
        {"members": (ME, Address("instance", "j", 6))},
        {"members": (Address("instance", "i", 4),)},
        {"layers": i32([0])},
    ],
)
def test_what_it_cannot_be_it_refuses_and_stays_what_it_was(wanted: dict[str, Any]) -> None:
    direct = ready_core()
    order: GroupOrder = make_order(plan_version=2, **wanted)
    assert only(GroupOrderRefused, direct.give(MANAGER, order)).plan_version == 2
    assert direct.core.report().plan_version == 1


@pytest.mark.parametrize("part", [GroupRole.PREFILL, GroupRole.DECODE])
def test_a_side_of_a_split_is_obeyed_and_reported(part: GroupRole) -> None:
    direct = ready_core()
    assert only(GroupOrderDone, direct.give(MANAGER, make_order(plan_version=2, part=part))) == GroupOrderDone(1, 2)
    assert direct.core.report().part is part


# --- reports ---


def reports_of(bench: Bench) -> list[tuple[float, InstanceReport]]:
    return [(now_s, message) for now_s, message in bench.monitor.heard if isinstance(message, InstanceReport)]


def test_a_monitor_hears_at_once_and_then_every_half_second() -> None:
    bench = Bench()
    bench.world.connect(MONITOR, ME)
    joined_s = bench.world.now_s + 2 * LATENCY_S
    bench.run(2.2)
    times = [now_s for now_s, _ in reports_of(bench)]
    assert times[0] == pytest.approx(joined_s)
    assert len(times) >= 5
    assert max(later - earlier for earlier, later in pairwise(times)) <= 0.5 + 1e-6


def test_changes_are_reported_soon_and_not_too_often() -> None:
    bench = Bench()
    bench.world.connect(MONITOR, ME)
    bench.run(0.3)
    bench.place(max_tokens=100)
    start_s = bench.world.now_s
    bench.run(0.8)
    news = [(now_s, report) for now_s, report in reports_of(bench) if now_s > start_s]
    assert news[0][0] - start_s <= 0.055
    assert news[0][1].running == 1
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(news)]
    assert min(gaps) >= 0.05 - 1e-9


def test_reports_begin_anew_with_a_second_monitor() -> None:
    bench = Bench()
    bench.world.connect(MONITOR, ME)
    bench.run(1.0)
    bench.world.disconnect(MONITOR, ME)
    bench.run(3.0)
    before = len(reports_of(bench))
    bench.world.connect(MONITOR, ME)
    bench.run(2.0)
    assert len(reports_of(bench)) - before >= 4


# --- whatever comes ---


@pytest.mark.parametrize("message", [Joined(), Gone("x"), Ended(1, 1), EngineProgress(0), done(1), EngineFailed("x")])
def test_nothing_of_its_vocabulary_makes_it_raise(message: Message) -> None:
    for sender in (D, ENGINE, MONITOR, MANAGER, ME, Address("etcd", ""), Address("kvstore", "kv", 4)):
        Direct().give(sender, message)
        ready_core().give(sender, message)


def test_the_same_messages_make_the_same_effects() -> None:
    def story() -> list[tuple[float, Address, Address, Message]]:
        bench = Bench(tier_bytes=1 << 16, engine={"slots": 64}, scheduler__allocate_ahead_tokens=4)
        for request in range(1, 7):
            bench.place(request, tokens=10, max_tokens=30)
        bench.run_until_quiet()
        return bench.world.sent

    assert story() == story()
