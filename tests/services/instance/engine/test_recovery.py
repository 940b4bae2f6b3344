"""One engine ends and the next begins: what KV is kept, which requests are blamed, when attempts are returned."""

from typing import Any

import pytest

from dunlin.effects import Gone, Joined
from dunlin.messages.dispatch import Accepted, Continued, Ended, Poisoned, Refused, Returned, Tokens
from dunlin.messages.engine import EngineExited, Open, Step, TransferDone
from dunlin.messages.types import TransferStatus
from services.instance.engine.recovery import EngineGraceOver, is_kv_trusted, may_be_request_fault
from services.instance.kv.residency import SlotUse
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import (
    ENGINE,
    ME,
    STEP_S,
    Attempt,
    Bench,
    D,
    Direct,
    done,
    figures,
    make_place,
    of,
    only,
    ready_core,
)

KILLED = EngineExited(0, 9)
SEGV = EngineExited(0, 11)


def decoding(count: int = 3, **settings: Any) -> tuple[Bench, list[Attempt]]:
    """`count` sequences in the middle of their texts."""
    bench = Bench(**{"engine": {"restart_s": 0.2}, **settings})
    attempts = [bench.place(request, tokens=20, max_tokens=30) for request in range(1, count + 1)]
    assert bench.world.run(lambda: all(len(attempt.tokens) >= 5 for attempt in attempts))
    return bench, attempts


def finish(bench: Bench, attempts: list[Attempt]) -> None:
    bench.run_until_quiet()
    bench.check_empty()
    for attempt in attempts:
        assert attempt.tokens == attempt.expected


def lose(direct: Direct, exited: EngineExited | None = KILLED, now_s: float = 1.0) -> list[Any]:
    """The engine of a core ends."""
    if exited is not None:
        assert direct.give(ENGINE, exited, now_s) == []
    return direct.give(ENGINE, Gone("closed its socket"), now_s)


def bring_back(direct: Direct, now_s: float = 1.5, **ready: Any) -> list[Any]:
    direct.give(ENGINE, Joined(), now_s)
    return direct.give(ENGINE, make_engine_ready(**ready), now_s)


# --- the KV cache that outlives its engine ---


def test_a_killed_engine_costs_a_pause_and_computes_nothing_twice() -> None:
    bench, attempts = decoding()
    computed = bench.core.steps.totals.prefill_tokens
    bench.seat.crash()
    crashed_s = bench.world.now_s
    held = {one.number: one.valid for one in bench.core.sequences.by_arrival()}
    heard = len(bench.dispatcher.heard)
    assert bench.world.run(lambda: any(isinstance(said, Tokens) for _, said in bench.dispatcher.heard[heard:]))
    assert bench.world.now_s - crashed_s < 0.2 + 2 * STEP_S
    finish(bench, attempts)
    report = bench.core.report()
    assert bench.core.steps.totals.prefill_tokens == computed
    assert report.revived_tokens_total == sum(held.values()) > 60
    assert (report.recomputed_tokens_total, report.engine_restarts_total) == (0, 1)
    continued = bench.dispatcher.of(Continued)
    assert [said.revived_tokens for said in continued] == list(held.values())
    assert "closed" in str(continued[0].why) or "stream reset" in str(continued[0].why)
    assert bench.dispatcher.of(Returned) == []


def test_the_rows_of_unanswered_steps_run_again_and_nothing_else() -> None:
    direct = ready_core(scheduler__budget_tokens=8)
    direct.give(D, make_place(tokens=20, max_tokens=9))
    direct.give(ENGINE, done(1))
    assert [direct.core.steps.outstanding, direct.core.sequences.by_arrival()[0].issued] == [2, 20]
    lose(direct)
    sends = bring_back(direct)
    opened = only(Open, sends)
    assert (list(opened.extent_start), list(opened.extent_length), len(opened.tokens)) == ([0], [8], 20)
    steps = of(Step, sends)
    assert [(list(step.start), list(step.stop), list(step.sample)) for step in steps] == [
        ([8], [16], [0]),
        ([16], [20], [1]),
    ]
    assert only(Continued, sends).revived_tokens == 8


def test_what_was_only_waiting_is_not_opened_before_its_turn() -> None:
    direct = ready_core(scheduler__max_running=1)
    direct.give(D, make_place(1))
    direct.give(D, make_place(2))
    lose(direct)
    assert [opened.sequence for opened in of(Open, bring_back(direct))] == [1]


@pytest.mark.parametrize(
    "different",
    [{"slots": 255}, {"weights_digest": "other"}, {"kv_dtype": "bfloat16"}, {"kv_bytes_per_token": 32}, {"arena": 7}],
)
def test_an_engine_that_is_not_the_same_finds_nothing_in_the_slab(different: dict[str, Any]) -> None:
    direct = ready_core()
    direct.give(D, make_place(tokens=10))
    direct.give(ENGINE, done(1, (1, 5)))
    lose(direct)
    sends = bring_back(direct, **different)
    assert (len(only(Open, sends).extent_start), only(Continued, sends).recomputed_tokens) == (0, 10)
    assert direct.core.report().revived_tokens_total == 0
    assert of(Step, sends)[0].start[0] == 0
    direct.core.slot_table.check_integrity()
    assert direct.core.slot_table.capacity == different.get("slots", 256)


def test_another_life_of_the_engine_finds_the_kv_where_it_lay() -> None:
    direct = ready_core({"agent": b"one life"})
    direct.give(D, make_place(tokens=10))
    direct.give(ENGINE, done(1, (1, 5)))
    lose(direct)
    assert len(only(Open, bring_back(direct, agent=b"the next")).extent_start) == 1
    assert direct.core.report().revived_tokens_total == 10


@pytest.mark.parametrize("signal", [4, 6, 7, 8, 11])
def test_after_a_crash_the_slab_is_not_believed(signal: int) -> None:
    bench, attempts = decoding()
    bench.seat.crash(signal)
    finish(bench, attempts)
    report = bench.core.report()
    assert (report.revived_tokens_total, bench.dispatcher.of(Returned)) == (0, [])
    assert report.recomputed_tokens_total > 60


def test_a_crash_while_the_next_engine_loads_is_not_forgotten() -> None:
    direct = ready_core()
    direct.give(D, make_place(tokens=10))
    direct.give(ENGINE, done(1, (1, 5)))
    lose(direct, KILLED)
    direct.give(ENGINE, Joined(), 1.1)
    lose(direct, SEGV, 1.2)
    assert len(only(Open, bring_back(direct)).extent_start) == 0
    assert direct.core.report().revived_tokens_total == 0


def test_how_one_ended_that_never_was_ready_says_nothing_of_the_next() -> None:
    direct = ready_core()
    direct.give(D, make_place(tokens=10))
    direct.give(ENGINE, done(1, (1, 5)))
    lose(direct, KILLED)
    direct.give(ENGINE, Joined(), 1.1)
    lose(direct, KILLED, 1.2)
    bring_back(direct)
    lose(direct, None, 2.0)
    assert len(only(Open, bring_back(direct, 2.5)).extent_start) == 0, "the end of that engine is unknown"


def test_an_engine_that_says_why_it_ends_left_a_whole_slab() -> None:
    bench, attempts = decoding()
    bench.seat.crash(signal=0, code=3)
    finish(bench, attempts)
    assert bench.core.report().revived_tokens_total > 60


@pytest.mark.parametrize(
    ("exited", "trusted", "blamed"),
    [
        (None, False, False),
        (EngineExited(0, 9), True, False),
        (EngineExited(0, 15), True, False),
        (EngineExited(0, 11), False, True),
        (EngineExited(0, 6), False, True),
        (EngineExited(0, 11, ended_by_us=True), True, False),
        (EngineExited(0, 9, ended_by_us=True), True, False),
        (EngineExited(3), True, True),
        (EngineExited(1), True, True),
        (EngineExited(0), True, False),
    ],
)
def test_what_an_end_says_of_the_slab_and_of_the_step(exited: EngineExited | None, trusted: bool, blamed: bool) -> None:
    assert (is_kv_trusted(exited), may_be_request_fault(exited)) == (trusted, blamed)


def test_cancelled_while_no_engine_runs_its_slots_are_free_at_once() -> None:
    bench, attempts = decoding(2)
    bench.seat.crash()
    bench.run(0.05)
    owned = bench.core.slot_table.count(SlotUse.OWNED)
    bench.cancel(attempts[0])
    bench.run(0.01)
    assert bench.core.slot_table.count(SlotUse.OWNED) < owned
    assert [ended.request for ended in bench.dispatcher.of(Ended)] == [1]
    finish(bench, attempts[1:])


def test_what_was_ending_has_ended_with_the_engine() -> None:
    bench, attempts = decoding(2)
    bench.cancel(attempts[0])
    bench.run(0.0011)
    bench.seat.crash()
    bench.run(0.01)
    assert [ended.request for ended in bench.dispatcher.of(Ended)] == [1]
    assert len(bench.core.sequences) == 1
    finish(bench, attempts[1:])


def test_late_words_of_the_dead_engine_change_nothing() -> None:
    direct = ready_core()
    direct.give(D, make_place())
    lose(direct)
    assert direct.give(ENGINE, done(1, (1, 5))) == []
    assert direct.give(ENGINE, TransferDone(1, TransferStatus.OK)) == []
    assert direct.core.report().stale_total == 1


def test_no_new_work_is_taken_while_no_engine_runs() -> None:
    direct = ready_core()
    lose(direct)
    assert of(Accepted, direct.give(D, make_place())) == []
    assert only(Refused, direct.give(D, make_place(2))).request == 2


# --- when others shall take over ---


def test_an_engine_that_would_take_too_long_is_not_waited_for() -> None:
    direct = ready_core(recovery__engine_grace_s=3.0)
    direct.give(D, make_place())
    returned = only(Returned, lose(direct, EngineExited(0, 9, back_in_s=3.1)))
    assert returned.why is not None
    assert returned.why.rejected[0].reason == "3.1 s are more than 3"
    assert direct.core.slot_table.free == direct.core.slot_table.capacity


def test_an_engine_that_does_not_come_is_waited_for_so_long_and_no_longer() -> None:
    bench, attempts = decoding(2, recovery__engine_grace_s=1.2)
    crashed_s = bench.world.now_s
    bench.seat.crash(returns=False)
    bench.run(5.0)
    assert bench.dispatcher.times(Returned) == [pytest.approx(crashed_s + 1.2, abs=0.01)] * 2
    assert all(attempt.is_over for attempt in attempts)
    assert len(bench.core.sequences) == 0


def test_the_grace_of_an_earlier_end_means_nothing_later() -> None:
    direct = ready_core()
    direct.give(D, make_place())
    lose(direct)
    (first,) = [timer.message for timer in direct.timers if isinstance(timer.message, EngineGraceOver)]
    bring_back(direct)
    assert of(Returned, direct.give(ME, first, 4.0)) == []
    lose(direct, now_s=4.1)
    assert of(Returned, direct.give(ME, first, 4.2)) == []
    assert len(direct.core.sequences) == 1


def test_a_sequence_in_whose_steps_three_engines_are_lost_is_handed_back_and_the_others_stay() -> None:
    direct = ready_core(scheduler__max_running=1)
    direct.give(D, make_place(1))
    direct.give(D, make_place(2))
    for loss in range(2):
        assert of(Returned, lose(direct, now_s=1.0 + loss)) == []
        bring_back(direct, 1.5 + loss)
    returned = only(Returned, lose(direct, now_s=9.0))
    assert (returned.request, returned.suspicion) == (1, 0)
    assert [one.place.request for one in direct.core.sequences.by_arrival()] == [2]


def test_an_answered_step_ends_the_row_of_lost_engines() -> None:
    direct = ready_core()
    direct.give(D, make_place(max_tokens=100))
    step = 1
    for loss in range(5):
        assert of(Returned, lose(direct, now_s=1.0 + loss)) == []
        step = of(Step, bring_back(direct, 1.5 + loss))[0].step
        direct.give(ENGINE, done(step, (1, 5)))


# --- poison ---


def poisoned_bench(**settings: Any) -> tuple[Bench, list[Attempt]]:
    """Request 2 crashes the engine whenever its last prompt token is computed."""
    bench = Bench(**{"engine": {"restart_s": 0.1}, **settings})

    def bite() -> bool:
        sequences = {one.number: one for one in bench.core.sequences.by_arrival()}
        for sequence, stop in bench.core.steps.executing_rows():
            if sequence.number in sequences and sequence.place.request == 2 and stop >= 20:
                bench.seat.crash(11)
                bench.run(0.12)
                return True
        return False

    attempts = [bench.place(request, tokens=20, max_tokens=30) for request in (1, 2, 3)]
    for _ in range(3000):
        if len(bench.core.sequences) == 0 and bench.world.now_s > 0.2:
            break
        if not bite():
            bench.run(0.002)
    return bench, attempts


def test_a_poison_request_stops_after_two_engines_crashed_alone_and_the_others_go_on() -> None:
    bench, attempts = poisoned_bench()
    poisoned = bench.dispatcher.of(Poisoned)
    assert [(said.request, said.attempt) for said in poisoned] == [(2, 1)]
    assert figures(poisoned[0].why)["crashes_alone"] == 2
    assert bench.core.report().engine_restarts_total == 3, "once in company, twice alone"
    assert bench.core.report().poisoned_total == 1
    assert bench.dispatcher.of(Returned) == []
    for attempt in (attempts[0], attempts[2]):
        assert attempt.tokens == attempt.expected


def test_suspects_run_alone_one_after_the_other_and_then_together() -> None:
    direct = ready_core()
    for request in (1, 2):
        direct.give(D, make_place(request, tokens=4))
    direct.give(ENGINE, done(1, (1, 7)))
    direct.give(ENGINE, done(2, (1, 7), (2, 7)))
    both = direct.core.steps.executing_rows()
    assert len(both) == 2
    lose(direct, SEGV)
    steps = of(Step, bring_back(direct))
    assert [len(step.sequence) for step in steps] == [1, 1], "the first suspect's, twice"
    first = steps[0].sequence[0]
    assert [step.sequence[0] for step in steps] == [first] * 2
    after_one = of(Step, direct.give(ENGINE, done(steps[0].step, (first, 7))))
    assert [len(step.sequence) for step in after_one] == [1]
    second = after_one[0].sequence[0]
    assert second != first
    direct.give(ENGINE, done(steps[1].step, (first, 7)))
    together = of(Step, direct.give(ENGINE, done(after_one[0].step, (second, 7))))
    assert sorted(together[0].sequence) == sorted([first, second])
    assert [one.suspicion for one in direct.core.sequences.by_arrival()] == [0, 0]


def test_only_the_executing_step_is_blamed() -> None:
    direct = ready_core()
    direct.give(D, make_place(1, tokens=4))
    direct.give(D, make_place(2, tokens=4))
    assert [sequence.place.request for sequence, _ in direct.core.steps.executing_rows()] == [1]
    assert direct.core.steps.outstanding == 2
    lose(direct, SEGV)
    assert [one.suspicion for one in direct.core.sequences.by_arrival()] == [2, 0]


@pytest.mark.parametrize("exited", [KILLED, EngineExited(0, 9, ended_by_us=True), EngineExited(0, 15), None])
def test_no_request_is_blamed_for_a_kill(exited: EngineExited | None) -> None:
    direct = ready_core()
    direct.give(D, make_place(1, tokens=4))
    lose(direct, exited)
    assert [one.suspicion for one in direct.core.sequences.by_arrival()] == [0]


def test_a_suspect_that_is_handed_back_takes_its_suspicion_along() -> None:
    direct = ready_core()
    direct.give(D, make_place(1, tokens=4))
    returned = only(Returned, lose(direct, EngineExited(0, 11, back_in_s=60.0)))
    assert returned.suspicion == 2
    bring_back(direct)
    direct.give(D, make_place(1, tokens=4, attempt=2, suspicion=2))
    assert only(Poisoned, lose(direct, SEGV)).attempt == 2
    assert len(direct.core.sequences) == 0


def test_a_suspect_that_goes_on_here_is_named_to_its_dispatcher_which_may_lose_this_instance() -> None:
    direct = ready_core()
    direct.give(D, make_place(1, tokens=4))
    direct.give(ENGINE, done(1, (1, 7)))
    lose(direct, SEGV)
    continued = only(Continued, bring_back(direct))
    assert (continued.suspicion, continued.trial_stop) == (2, 5)


def test_a_handed_out_suspect_runs_alone_beside_what_runs_already() -> None:
    direct = ready_core()
    direct.give(D, make_place(1, tokens=4, max_tokens=50))
    direct.give(D, make_place(2, tokens=4, suspicion=1))
    sent = direct.give(ENGINE, done(1, (1, 7)))
    assert [list(step.sequence) for step in of(Step, sent)] == [[2]]
    sent = direct.give(ENGINE, done(2, (1, 7)))
    assert [list(step.sequence) for step in of(Step, sent)] == [[2]]
    sent = direct.give(ENGINE, done(3, (2, 7)))
    assert [sorted(step.sequence) for step in of(Step, sent)] == [[1, 2]]
