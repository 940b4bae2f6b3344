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


def test_what_was_not_answered_is_sent_again_on_the_next_stream() -> None:
    """A stream whose other end is gone takes messages for a while."""
    fences = AttemptFences()
    for number in (1, 2, 3):
        fences.cancel(A, number, number, "x")
    fences.cancel(B, 1, 1, "x")
    fences.on_ended(A, 2, 2)
    sent = [(one.to, one.message) for one in fences.on_instance_joined(A) if isinstance(one, Send)]
    cancels = [(to, message.request, message.attempt) for to, message in sent if isinstance(message, Cancel)]
    assert cancels == [(A, 1, 1), (A, 3, 3)]
    assert len(fences) == 3


def test_fences_are_bounded_and_the_oldest_goes() -> None:
    fences = AttemptFences(most=2)
    for number in range(3):
        fences.cancel(A, number, 1, "x")
    assert len(fences) == 2
    assert len(fences.cancel(A, 0, 1, "x")) == 1


def test_an_answer_to_a_newer_attempt_is_one_to_the_older_ones_too() -> None:
    fences = AttemptFences()
    fences.cancel(A, 7, 2, "over")
    fences.on_ended(A, 7, 3)
    assert len(fences) == 0
