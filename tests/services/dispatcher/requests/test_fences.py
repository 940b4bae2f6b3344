"""Fences: each old attempt is cancelled once; the memory of it is bounded."""

from dunlin.effects import Send
from dunlin.messages.dispatch import Cancel
from services.dispatcher.requests.fences import AttemptFences
from tests.services.dispatcher.factories import A, B


def test_a_cancel_goes_out_once_per_attempt_and_instance() -> None:
    fences = AttemptFences()
    (effect,) = fences.cancel(A, 7, 2, "over")
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Cancel)
    assert (effect.to, effect.message.request, effect.message.attempt) == (A, 7, 2)
    assert effect.message.why is not None
    assert effect.message.why.chosen == "cancel: over"
    assert fences.cancel(A, 7, 2, "over") == fences.cancel(A, 7, 1, "over") == []
    assert len(fences.cancel(A, 7, 3, "over")) == len(fences.cancel(B, 7, 2, "over")) == 1


def test_an_answer_clears_the_attempts_it_covers() -> None:
    fences = AttemptFences()
    fences.cancel(A, 7, 2, "over")
    fences.on_ended(A, 7, 1)
    fences.on_ended(B, 7, 2)
    fences.on_ended(A, 8, 2)
    assert len(fences) == 1
    fences.on_ended(A, 7, 2)
    assert len(fences) == 0


def test_a_lost_stream_clears_its_own() -> None:
    fences = AttemptFences()
    fences.cancel(A, 1, 1, "x")
    fences.cancel(B, 1, 1, "x")
    fences.forget_instance(A)
    assert len(fences) == 1
    assert len(fences.cancel(A, 1, 1, "x")) == 1
    assert fences.cancel(B, 1, 1, "x") == []


def test_fences_are_bounded_and_the_oldest_goes() -> None:
    fences = AttemptFences(most=2)
    for number in range(3):
        fences.cancel(A, number, 1, "x")
    assert len(fences) == 2
    assert len(fences.cancel(A, 0, 1, "x")) == 1
