"""The instance's core at exact times: how many sequences hold slots, and when tokens arrive."""

from typing import Any

import pytest

from dunlin.messages.dispatch import (
    Cancel,
    Tokens,
)
from dunlin.messages.types import FinishReason
from tests.services.instance.bench import (
    ENGINE,
    LATENCY_S,
    STEP_S,
    Bench,
    D,
    done,
    make_place,
    ready_core,
)


def test_no_more_than_max_running_hold_slots_at_once() -> None:
    bench = Bench(scheduler__max_running=3)
    attempts = [bench.place(request, tokens=4, max_tokens=10) for request in range(1, 9)]
    most = 0
    while not all(attempt.is_over for attempt in attempts):
        bench.run(0.005)
        most = max(most, bench.core.sequences.running_count)
    assert most == max(len(step.sequence) for step in bench.engine.steps) == 3


def test_those_that_are_being_restored_count_too() -> None:
    """After a failover many attempts come at once of which the host tier has the KV."""
    bench = Bench(tier_bytes=1 << 18, engine={"slots": 1024}, scheduler__max_running=3)
    attempts = []
    for request in range(1, 9):
        again: dict[str, Any] = {"known": [request, *range(39)], "prompt_tokens": 30, "max_tokens": 20, "attempt": 2}
        bench.leave_behind(make_place(request, **again), (0, 32))
        attempts.append(bench.place(request, **again))
    most = 0
    while not all(attempt.is_over for attempt in attempts):
        bench.run(0.005)
        most = max(most, bench.core.report().running)
    assert bench.core.report().restored_regions_total == len(attempts)
    assert most == max(len(step.sequence) for step in bench.engine.steps) == 3
    bench.check_empty()


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
