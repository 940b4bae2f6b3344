"""The lifecycle of a sequence: preemption, restart and end, with exact times."""

import pytest

from dunlin.messages.dispatch import (
    Cancel,
    Continued,
    Ended,
    Failed,
    Preempted,
    Tokens,
)
from dunlin.messages.engine import (
    Open,
)
from services.instance.sequence.states import SequenceState
from tests.services.instance.bench import (
    ENGINE,
    LATENCY_S,
    STEP_S,
    Bench,
    D,
    make_place,
    ready_core,
)


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


def test_sequences_that_run_out_together_do_not_preempt_each_other_in_turns() -> None:
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


def test_no_sequence_waits_for_slots_of_one_that_leaves_without_any() -> None:
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
