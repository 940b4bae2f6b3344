"""The instance's core at exact times: admission, fences, steps, cancels, preemption."""

from typing import Any

import pytest

from dunlin.effects import Joined
from dunlin.messages.dispatch import (
    Accepted,
    Cancel,
    Continued,
    Ended,
    Failed,
    Place,
    Preempted,
    Refusal,
    Refused,
    Tokens,
)
from dunlin.messages.engine import (
    Close,
    Open,
    Step,
    StepDone,
)
from dunlin.messages.types import FinishReason, SamplingParams, f32, i8, i32, i64
from services.instance.sequence.table import SequenceState
from simulator.engine.model import make_engine_ready
from simulator.engine.token_model import continuation
from tests.services.instance.bench import (
    ENGINE,
    LATENCY_S,
    ME,
    OTHER,
    STEP_S,
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

# --- admission ---


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (make_place(tokens=60, max_tokens=5), Refusal.TOO_LONG),
        (make_place(tokens=5, max_tokens=60), Refusal.TOO_LONG),
        (make_place(known=[1, 2, 3], prompt_tokens=1, max_tokens=2), Refusal.TOO_LONG),
    ],
)
def test_what_can_never_fit_is_refused_at_the_door_with_the_figures(place: Place, reason: Refusal) -> None:
    direct = ready_core({"slots": 64})
    refused = only(Refused, direct.give(D, place))
    assert refused.reason is reason
    assert figures(refused.why)["limit"] == 64
    assert len(direct.core.sequences) == 0


def test_what_no_engine_may_be_given_is_refused_in_words() -> None:
    direct = ready_core({"slots": 64})
    faults: list[tuple[dict[str, Any], str]] = [
        ({"sampling": SamplingParams(temperature=float("nan"))}, "temperature: must be at least 0"),
        ({"sampling": SamplingParams(logprobs=21)}, "logprobs: must be between 0 and 20"),
        ({"stop_ids": i32(range(400))}, "stop_token_ids: has 400 entries"),
        ({"known": [5, -1, 6]}, "the model has no such token as -1"),
    ]
    for number, (wrong, text) in enumerate(faults, 1):
        refused = only(Refused, direct.give(D, make_place(number, **wrong)))
        assert refused.reason is Refusal.INVALID
        assert refused.why is not None
        assert text in refused.why.rejected[0].reason
    assert len(direct.core.sequences) == 0


def test_what_just_fits_is_taken() -> None:
    direct = ready_core({"slots": 64})
    assert of(Accepted, direct.give(D, make_place(tokens=60, max_tokens=4)))


def test_the_model_limits_too() -> None:
    direct = ready_core({"slots": 64, "max_positions": 32})
    assert only(Refused, direct.give(D, make_place(tokens=30, max_tokens=3))).reason is Refusal.TOO_LONG
    assert of(Accepted, direct.give(D, make_place(2, tokens=30, max_tokens=2)))


def test_a_token_that_the_model_does_not_have_never_reaches_the_engine() -> None:
    direct = ready_core({"vocabulary": 100})
    for request, known in enumerate(([1, 100], [-1, 5]), 1):
        refused = only(Refused, direct.give(D, make_place(request, known=known)))
        assert figures(refused.why)["vocabulary"] == 100


def test_without_engine_or_plan_nothing_is_taken() -> None:
    direct = Direct()
    assert only(Refused, direct.give(D, make_place())).reason is Refusal.NOT_READY
    direct.give(ENGINE, Joined())
    direct.give(ENGINE, make_engine_ready())
    assert only(Refused, direct.give(D, make_place())).reason is Refusal.NOT_IN_PLAN


def test_the_waiting_queue_is_bounded_and_says_so() -> None:
    direct = ready_core({"slots": 16}, scheduler__max_waiting=2)
    answers = [direct.give(D, make_place(request, tokens=12, max_tokens=4)) for request in range(1, 5)]
    assert [bool(of(Accepted, sends)) for sends in answers] == [True, True, True, False]
    refused = only(Refused, answers[3])
    assert refused.reason is Refusal.FULL
    assert figures(refused.why) == {"waiting": 2, "max": 2}
    assert direct.core.report().waiting == 2


def test_an_acceptance_says_why_and_how_long_it_may_take() -> None:
    accepted = only(Accepted, ready_core().give(D, make_place(tokens=7)))
    assert (accepted.request, accepted.attempt, accepted.eta_s) == (1, 1, 0.0)
    assert figures(accepted.why)["tokens"] == 7
    assert figures(accepted.why)["free_slots"] == 256


def test_no_more_than_max_running_hold_slots_at_once() -> None:
    bench = Bench(scheduler__max_running=3)
    attempts = [bench.place(request, tokens=4, max_tokens=10) for request in range(1, 9)]
    most = 0
    while not all(attempt.is_over for attempt in attempts):
        bench.run(0.005)
        most = max(most, bench.core.sequences.running_count)
    assert most == max(len(step.sequence) for step in bench.engine.steps) == 3


def test_a_newcomer_leaves_room_for_those_that_run_to_grow() -> None:
    direct = ready_core({"slots": 64}, scheduler__allocate_ahead_tokens=8)
    direct.give(D, make_place(1, tokens=10, max_tokens=40))
    assert direct.core.slot_table.free == 46
    direct.give(D, make_place(2, tokens=35, max_tokens=8))
    direct.give(ENGINE, done(1, (1, 5)))
    assert direct.core.report().waiting == 1, "43 of 46 slots would fit, but leave less than the headroom of 4"
    direct.give(D, Cancel(2, 1))
    direct.give(D, make_place(3, tokens=34, max_tokens=8))
    direct.give(ENGINE, done(2, (1, 6)))
    assert direct.core.report().waiting == 0


# --- fences ---


def test_a_newer_attempt_replaces_the_older_and_an_older_one_changes_nothing() -> None:
    direct = ready_core()
    direct.give(D, make_place(attempt=2))
    number = direct.core.sequences.by_arrival()[0].number
    stale = direct.give(D, make_place(attempt=1))
    assert not of(Accepted, stale)
    assert direct.core.report().stale_total == 1
    newer = direct.give(D, make_place(attempt=3))
    assert only(Accepted, newer).attempt == 3
    assert only(Close, newer).sequence == number
    tokens = direct.give(ENGINE, done(1, (number, 5)))
    assert not of(Tokens, tokens), "the older attempt's token goes to no dispatcher"


def test_a_repeated_attempt_is_no_second_sequence() -> None:
    direct = ready_core()
    direct.give(D, make_place())
    assert not of(Accepted, direct.give(D, make_place()))
    assert len(direct.core.sequences) == 1


def test_dispatchers_do_not_fence_each_other() -> None:
    direct = ready_core()
    direct.give(OTHER, Joined())
    direct.give(D, make_place(1, attempt=5))
    assert of(Accepted, direct.give(OTHER, make_place(1, attempt=1)))
    direct.give(OTHER, Cancel(1, 1))
    assert direct.core.sequences.by_key((D, 1)) is not None


def test_a_cancel_of_an_older_attempt_spares_the_newer() -> None:
    direct = ready_core()
    direct.give(D, make_place(attempt=2))
    direct.give(D, Cancel(1, 1))
    assert direct.core.sequences.by_key((D, 1)) is not None


def test_a_cancel_of_what_is_not_here_is_answered_at_once() -> None:
    assert only(Ended, ready_core().give(D, Cancel(7, 2))) == Ended(7, 2)


def test_an_answer_to_a_step_that_nobody_waits_for_is_counted() -> None:
    direct = ready_core()
    assert direct.give(ENGINE, done(9, (1, 5))) == []
    assert direct.core.report().stale_total == 1


def test_a_cancel_of_a_replaced_attempt_is_answered_when_its_slots_are_free() -> None:
    direct = ready_core()
    direct.give(D, make_place(attempt=1, max_tokens=100))
    direct.give(D, make_place(attempt=2, max_tokens=100))
    assert direct.give(D, Cancel(1, 1)) == []
    assert not of(Ended, direct.give(ENGINE, done(1, dropped=(1,))))
    assert only(Ended, direct.give(ENGINE, done(2, dropped=(1,)))) == Ended(1, 1)


# --- steps ---


def test_tokens_arrive_one_per_step_at_exact_times() -> None:
    bench = Bench()
    start_s = bench.world.now_s
    attempt = bench.place(tokens=10, max_tokens=4)
    bench.run_until_quiet()
    bench.check_empty()
    assert attempt.tokens == attempt.expected
    first_s = start_s + 4 * LATENCY_S + STEP_S  # place, step, answer, tokens
    times = bench.dispatcher.times(Tokens)
    assert times == pytest.approx([first_s + index * STEP_S for index in range(4)])
    assert attempt.finish is FinishReason.LENGTH


def test_the_engine_always_finds_the_next_step_queued_and_never_a_third() -> None:
    bench = Bench()
    bench.place(tokens=10, max_tokens=50)
    bench.run_until_quiet()
    assert bench.engine.most_queued == 2


def test_two_steps_are_composed_before_the_first_is_answered() -> None:
    direct = ready_core()
    first, second = of(Step, direct.give(D, make_place(tokens=10)))
    assert (list(first.start), list(first.stop), list(first.sample)) == ([0], [10], [1])
    assert (list(second.start), list(second.stop), list(second.sample)) == ([10], [11], [1])


def test_the_last_token_needs_no_step_after_it() -> None:
    direct = ready_core()
    assert len(of(Step, direct.give(D, make_place(tokens=10, max_tokens=1)))) == 1


def test_a_long_prompt_comes_in_chunks_and_decode_rows_ride_along() -> None:
    bench = Bench(scheduler__budget_tokens=16)
    short = bench.place(1, tokens=4, max_tokens=20)
    bench.run(3 * STEP_S)
    long = bench.place(2, tokens=40, max_tokens=4)
    bench.run_until_quiet()
    bench.check_empty()
    assert (short.tokens, long.tokens) == (short.expected, long.expected)
    mixed = [step for step in bench.engine.steps if len(step.sequence) == 2 and step.stop[1] - step.start[1] > 1]
    assert [(step.start[1], step.stop[1], step.sample[1]) for step in mixed] == [(0, 15, 0), (15, 30, 0), (30, 40, 1)]
    report = bench.core.report()
    assert (report.mixed_steps_total, report.prefill_tokens_total, report.tokens_total) == (3, 44, 24)


def test_a_stop_in_the_first_step_drops_the_row_of_the_second() -> None:
    bench = Bench()
    attempt = bench.place(tokens=10, max_tokens=8, stop_ids=i32([continuation(make_place().tokens, 4, seed=1)[3]]))
    bench.run_until_quiet()
    bench.check_empty()
    assert (len(attempt.tokens), attempt.finish) == (4, FinishReason.STOP)
    dropped = [message.dropped for _, _, to, message in bench.world.sent if to == ME and isinstance(message, StepDone)]
    assert [len(rows) for rows in dropped] == [0, 0, 0, 0, 1]


def test_a_step_says_why_only_when_its_composition_changed() -> None:
    bench = Bench()
    bench.place(1, tokens=4, max_tokens=30)
    bench.run(10 * STEP_S)
    bench.place(2, tokens=4, max_tokens=5)
    bench.run_until_quiet()
    changed = [len(step.sequence) for step in bench.engine.steps if step.why is not None]
    assert changed == [1, 2, 1]
    assert len(bench.engine.steps) > 25


def test_top_logprobs_reach_their_own_row() -> None:
    direct = ready_core()
    direct.give(D, make_place(1, max_tokens=1))
    direct.give(D, make_place(2))
    answer = StepDone(
        1,
        i64([1]),
        i32([5]),
        f32([-1.0]),
        i8([2]),
        top_count=i32([2]),
        top_token=i32([5, 6]),
        top_logprob=f32([-1, -2]),
    )
    tokens = only(Tokens, direct.give(ENGINE, answer))
    assert (list(tokens.top_count), list(tokens.top_token), list(tokens.top_logprob)) == ([2], [5, 6], [-1.0, -2.0])


def test_each_dispatcher_gets_one_message_per_step() -> None:
    bench = Bench()
    other = bench.add_dispatcher("e")
    bench.run(0.01)
    for request in (1, 2, 3):
        bench.place(request)
        bench.place(request, by=other)
    bench.run_until_quiet()
    bench.check_empty()
    for dispatcher in (bench.dispatcher, other):
        assert len(dispatcher.of(Tokens)) <= len(bench.engine.steps)
        assert all(attempt.tokens == attempt.expected for attempt in dispatcher.attempts.values())


# --- cancel ---


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.004, 0.013, 0.0135, 0.02, 0.05])
def test_slots_are_free_once_the_steps_that_name_them_have_answered(after_s: float) -> None:
    bench = Bench()
    attempt = bench.place(tokens=10, max_tokens=100)
    bench.run(after_s)
    bench.cancel(attempt)
    start_s = bench.world.now_s
    bench.run_until_quiet()
    bench.check_empty()
    assert bench.dispatcher.of(Ended) == [Ended(1, 1)]
    assert bench.dispatcher.times(Ended)[0] - start_s <= 2 * STEP_S + 5 * LATENCY_S


def test_a_cancelled_one_that_still_waits_ends_at_once() -> None:
    direct = ready_core({"slots": 16})
    for request in (1, 2):
        direct.give(D, make_place(request, tokens=12, max_tokens=4))
    sends = direct.give(D, Cancel(2, 1))
    assert [send.message for send in sends] == [Ended(2, 1)]


# --- preemption ---


def test_the_youngest_gives_way_and_comes_back_by_itself() -> None:
    bench = Bench(engine={"slots": 64}, scheduler__allocate_ahead_tokens=4)
    attempts = [bench.place(request, tokens=10, max_tokens=40) for request in (1, 2, 3)]
    bench.run_until_quiet()
    bench.check_empty()
    assert all(attempt.tokens == attempt.expected for attempt in attempts)
    preempted = bench.dispatcher.of(Preempted)
    assert preempted[0].request == 3
    assert 1 not in [message.request for message in preempted], "the oldest never gives way"
    assert preempted[0].why is not None
    assert preempted[0].why.policy == "youngest"
    assert len(bench.dispatcher.of(Continued)) == len(preempted)
    assert all(message.why is not None for message in bench.dispatcher.of(Continued))


def test_where_pressure_means_recompute_nothing_comes_back_from_the_host_tier() -> None:
    bench = Bench(engine={"slots": 64}, scheduler__allocate_ahead_tokens=4, preset="vllm")
    attempts = [bench.place(request, tokens=10, max_tokens=40) for request in (1, 2, 3)]
    bench.run_until_quiet()
    bench.check_empty()
    assert all(attempt.tokens == attempt.expected for attempt in attempts)
    preempted = bench.dispatcher.of(Preempted)
    assert preempted
    assert all("spill" in [one.option for one in message.why.rejected] for message in preempted if message.why)
    assert bench.core.report().restored_tokens_total == 0
    assert bench.core.report().recomputed_tokens_total > 0


def test_those_who_run_out_together_do_not_push_each_other_out_in_turns() -> None:
    bench = Bench(engine={"slots": 256})
    attempts = [bench.place(request, tokens=20, max_tokens=100) for request in range(1, 17)]
    bench.run_until_quiet()
    bench.check_empty()
    assert all(attempt.tokens == attempt.expected for attempt in attempts)
    assert bench.core.report().preemptions_total <= 2 * len(attempts)


def test_a_preempted_one_comes_before_newcomers() -> None:
    bench = Bench(engine={"slots": 64}, scheduler__allocate_ahead_tokens=4)
    for request in (1, 2):
        bench.place(request, tokens=16, max_tokens=40)
    assert bench.world.run(lambda: bool(bench.dispatcher.of(Preempted)), for_s=5)
    newcomer = bench.place(3, tokens=4, max_tokens=4)
    bench.run_until_quiet()
    continued_s = bench.dispatcher.times(Continued)[0]
    opened_s = [at_s for at_s, _, to, message in bench.world.sent if isinstance(message, Open) and to == ENGINE][-1]
    assert newcomer.tokens == newcomer.expected
    assert opened_s >= continued_s - LATENCY_S


def test_nobody_waits_for_slots_of_one_that_leaves_without_any() -> None:
    bench = Bench(tier_bytes=1 << 16, engine={"slots": 64}, scheduler__allocate_ahead_tokens=4)
    for request in (1, 2):
        bench.place(request, tokens=16, max_tokens=40)
    bench.run(0.02)
    bench.place(3, tokens=60, max_tokens=4)
    bench.run(0.02)
    (third,) = [one for one in bench.core.sequences.by_arrival() if one.place.request == 3]
    bench.core.sequences.transition(third, SequenceState.LEAVING)
    bench.run(1.0)
    assert bench.core.report().preemptions_total == 1
    assert third.state is SequenceState.LEAVING


def test_a_sequence_without_a_next_token_fails_and_the_others_go_on() -> None:
    bench = Bench(engine={"failing_token": 77})
    bench.place(1, tokens=20, max_tokens=8)
    bench.place(2, known=[5, 77, 7], max_tokens=8)
    bench.run_until_quiet()
    (failed,) = bench.dispatcher.of(Failed)
    assert (failed.request, failed.attempt) == (2, 1)
    assert failed.why is not None
    assert failed.why.chosen == "the model's logits after token 3 are not finite"
    assert 2 not in {request for tokens in bench.dispatcher.of(Tokens) for request in tokens.request}
    assert sum(len(tokens.token) for tokens in bench.dispatcher.of(Tokens)) == 8
    report = bench.core.report()
    assert (report.engine_restarts_total, report.poisoned_total) == (0, 0)
    assert len(bench.core.sequences) == 0
