"""Short requests start although a long one before them waits for slots, which is not starved."""

from typing import Any

import pytest

from dunlin.messages.types import FinishReason, RequestClass
from services.instance.scheduling.overtakers import MOST_LOOKED_AT
from services.instance.sequence.states import SequenceState
from tests.services.instance.bench import ENGINE, Bench, D, Direct, done, make_place, ready_core

SLOTS = 640
"""Those that start early may grow to 80 of them, and with the one that waits to 560."""
BATCH, CHAT = RequestClass.BATCH, RequestClass.INTERACTIVE
SHORT = 15, CHAT
"""Grows to 23 slots."""
SETTINGS: dict[str, Any] = {"scheduler__overtake_policy": "shorter", "scheduler__allocate_ahead_tokens": 1}


def blocked(*later: tuple[int, RequestClass], first: int = 400, second: int = 300, **settings: Any) -> Direct:
    """The first runs, the second waits for slots and grows to 8 more, and behind it are some with such prompts."""
    direct = ready_core({"slots": SLOTS}, **SETTINGS | settings)
    direct.give(D, make_place(1, tokens=first, max_tokens=15))
    direct.give(D, make_place(2, tokens=second))
    for request, (tokens, request_class) in enumerate(later, start=3):
        direct.give(D, make_place(request, tokens=tokens, request_class=request_class))
    direct.give(ENGINE, done(1, (1, 5)))
    return direct


def running(direct: Direct) -> list[int]:
    """The requests that run."""
    return [each.place.request for each in direct.core.sequences.by_arrival() if each.state is SequenceState.RUNNING]


def test_short_ones_pass_until_they_need_their_share_and_again_once_one_of_them_has_ended() -> None:
    direct = blocked(SHORT, SHORT, SHORT, SHORT)
    assert running(direct) == [1, 3, 4, 5], "23 slots each"
    direct.give(ENGINE, done(2, (1, 5)))
    assert running(direct) == [1, 3, 4, 5]
    ended = done(3, (1, 5), (3, 5), (4, 5), (5, 5))
    ended.finish[1] = FinishReason.STOP
    direct.give(ENGINE, ended)
    direct.give(ENGINE, done(4, (1, 5), (4, 5), (5, 5)))
    assert running(direct) == [1, 4, 5, 6]


def test_what_ran_before_an_answer_that_was_cut_off_elsewhere_came_has_not_passed_it() -> None:
    """It goes before all new requests, so those that wait already pass it, too, and are counted then."""
    direct = ready_core({"slots": SLOTS}, **SETTINGS)
    direct.give(D, make_place(1, tokens=400, max_tokens=15))
    for request in (2, 3, 4, 5):
        direct.give(D, make_place(request, tokens=15))
    direct.give(D, make_place(6, tokens=300, prompt_tokens=290, max_tokens=18))
    direct.give(ENGINE, done(1, (1, 5)))
    assert running(direct) == [1, 2, 3, 4]
    direct.give(ENGINE, done(2, (1, 5)))
    assert running(direct) == [1, 2, 3, 4]


def test_only_what_fits_passes() -> None:
    assert running(blocked(SHORT, SHORT, (2, CHAT), first=616, second=300)) == [1, 3, 5]


def test_what_is_not_much_shorter_and_batch_work_pass_nothing() -> None:
    assert running(blocked((31, CHAT), (15, BATCH), SHORT)) == [1, 5]
    assert running(blocked((30, CHAT))) == [1, 3]


def test_first_come_first_served_is_the_rule_of_other_presets() -> None:
    assert running(blocked(SHORT, scheduler__overtake_policy="never")) == [1]


def test_nothing_passes_batch_work_that_rose() -> None:
    direct = ready_core({"slots": SLOTS}, **SETTINGS)
    direct.give(D, make_place(1, tokens=400, max_tokens=15))
    direct.give(D, make_place(2, tokens=300, request_class=BATCH))
    direct.give(D, make_place(3, tokens=15))
    direct.core.sequences.rise(direct.core.sequences.by_arrival()[1])
    direct.give(ENGINE, done(1, (1, 5)))
    assert running(direct) == [1]


def test_no_more_than_so_many_are_looked_at() -> None:
    long = 100, CHAT
    assert running(blocked(*[long] * (MOST_LOOKED_AT - 1), SHORT)) == [1, 2 + MOST_LOOKED_AT]
    assert running(blocked(*[long] * MOST_LOOKED_AT, SHORT)) == [1]


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_short_one_passes_as_soon_as_the_kvstore_has_said_what_is_left_of_it_or_has_not_in_time(
    is_silent: bool,
) -> None:
    """Its answer lets what is kept of the long one start, which does not fit; the one that runs only goes on."""
    settings: dict[str, Any] = {"checkpoint__engine_share": 0.0, "host_tier__answer_timeout_s": 0.2, **SETTINGS}
    bench = Bench(tier_bytes=1 << 20, engine={"slots": SLOTS}, **settings)
    first = bench.place(1, tokens=400, max_tokens=200)
    bench.run(0.1)
    bench.leave_behind(make_place(2, tokens=300, attempt=2), (0, 128))
    bench.place(2, tokens=300, attempt=2)
    bench.run(0.1)
    if is_silent:
        assert bench.kvstore is not None
        bench.world.pause(bench.kvstore.address)
    short = bench.place(3, tokens=15, attempt=2)
    bench.run(0.3)
    assert short.tokens
    assert not first.is_over


def test_a_short_one_passes_once_slots_come_back_without_a_word() -> None:
    """Those of a migration that came to nothing, for instance."""
    direct = ready_core({"slots": SLOTS}, **SETTINGS)
    direct.give(D, make_place(1, tokens=400, max_tokens=100))
    direct.give(ENGINE, done(1, (1, 5)))
    cache, owner = direct.core.lifecycle.kv_cache, object()
    assert cache.reserve(owner, 230)
    direct.give(D, make_place(2, tokens=300))
    direct.give(D, make_place(3, tokens=15))
    for step in range(2, 6):
        direct.give(ENGINE, done(step, (1, 5)))
    assert running(direct) == [1]
    cache.slot_table.release(owner)
    direct.give(ENGINE, done(6, (1, 5)))
    assert running(direct) == [1, 3]


@pytest.mark.parametrize("tokens", [300, 480, 580, 630])
def test_the_one_that_waits_for_all_before_it_starts_as_soon_as_without_those_behind_it(tokens: int) -> None:
    """Whatever comes meanwhile: a request every 10 ms, each of up to 30 tokens."""

    def waited_s(policy: str, others: int) -> float:
        bench = Bench(engine={"slots": SLOTS}, **SETTINGS | {"scheduler__overtake_policy": policy})
        attempts = [bench.place(1, tokens=400, max_tokens=50)]
        bench.run(0.02)
        long = bench.place(2, tokens=tokens, max_tokens=4)
        attempts.append(long)
        at_s = None
        for request in range(3, 80):
            if request < others:
                attempts.append(bench.place(request, tokens=15, max_tokens=15))
            bench.run(0.01)
            at_s = at_s or (bench.world.now_s if long.tokens else None)
        bench.run_until_quiet()
        bench.check_empty()
        assert [each.tokens for each in attempts] == [each.expected for each in attempts]
        assert at_s is not None
        return at_s

    assert waited_s("shorter", 80) <= waited_s("never", 0) + 0.02
