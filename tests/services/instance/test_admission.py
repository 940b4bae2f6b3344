"""Admission: which attempts are accepted, which are refused and why, and how an attempt is cancelled."""

from typing import Any

import pytest

from dunlin.effects import Joined
from dunlin.messages.dispatch import (
    Accepted,
    Cancel,
    Ended,
    Place,
    Refusal,
    Refused,
    Tokens,
)
from dunlin.messages.engine import (
    Close,
)
from dunlin.messages.types import SamplingParams, i32
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import (
    ENGINE,
    OTHER,
    D,
    Direct,
    done,
    figures,
    make_place,
    of,
    only,
    ready_core,
)


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
    refused = only(Refused, direct.give(D, make_place(tokens=30, max_tokens=3)))
    assert (refused.reason, refused.limit_tokens) == (Refusal.TOO_LONG, 32)
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


def test_a_cancel_of_a_replaced_attempt_is_answered_when_its_slots_are_free() -> None:
    direct = ready_core()
    direct.give(D, make_place(attempt=1, max_tokens=100))
    direct.give(D, make_place(attempt=2, max_tokens=100))
    assert direct.give(D, Cancel(1, 1)) == []
    assert not of(Ended, direct.give(ENGINE, done(1, dropped=(1,))))
    assert only(Ended, direct.give(ENGINE, done(2, dropped=(1,)))) == Ended(1, 1)
