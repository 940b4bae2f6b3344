"""The replay cache in the core: a retry gets a finished answer again, within bounds of age, number and tokens."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Send
from dunlin.messages.dispatch import Adopt, NotHeld, PromptScored
from dunlin.messages.door import CancelById, Delta, RejectionCode, SubmitRejected
from dunlin.messages.lifecycle import Admitted
from dunlin.messages.types import FinishReason, SamplingParams, f32, i32
from tests.services.dispatcher import factories
from tests.services.dispatcher.adoption_factories import Bench, named
from tests.services.dispatcher.factories import A, client, member, messages, only, rows


def finished(
    bench: factories.Bench, *tokens: int, finish: FinishReason = FinishReason.LENGTH, **overrides: Any
) -> None:
    """A named request ran to its end."""
    bench.give(client("c"), named(**overrides))
    bench.give(A, NotHeld(1, 1))
    for index, token in enumerate(tokens):
        last = index + 1 == len(tokens)
        bench.give(A, rows((1, 2, 3 + index, token), finish=finish if last else FinishReason.RUNNING))


def test_a_finished_answer_is_replayed_until_it_is_too_old() -> None:
    bench = Bench(idempotency__replay_s=60.0).fleet(member(A))
    finished(bench, 70, 71)
    again = [
        Send(client("d"), Admitted("req-2a-1")),
        Send(client("d"), Delta(i32([70, 71]), finish=FinishReason.LENGTH)),
    ]
    assert bench.give(client("d"), named(), 59.9) == again
    assert len(bench.core.journal) == 0
    assert bench.core.report().joined_total == 1
    other = only(bench.give(client("e"), named(digest=b"x")), SubmitRejected)
    assert other.code is RejectionCode.CONFLICT
    assert "the idempotency key 'k' was used" in other.detail
    assert only(bench.give(client("f"), named(tenant="u")), Adopt).tenant == "u"
    assert only(bench.give(client("g"), named(), 60.0), Adopt).request == 3


def test_log_probabilities_are_replayed_too() -> None:
    bench = Bench().fleet(member(A))
    finished(bench, 70, 71, sampling=SamplingParams(logprobs=0))
    delta = only(bench.give(client("d"), named(sampling=SamplingParams(logprobs=0))), Delta)
    assert (list(delta.tokens), list(delta.logprobs), list(delta.top_count)) == ([70, 71], [-0.5, -0.5], [0, 0])


@pytest.mark.parametrize(("stops", "told"), [((71,), FinishReason.STOP), ((), FinishReason.RUNNING)])
def test_a_stop_string_is_for_the_door_to_find_again(stops: tuple[int, ...], told: FinishReason) -> None:
    bench = Bench().fleet(member(A))
    finished(bench, 70, 71, finish=FinishReason.STOP, stop_ids=i32(stops))
    assert only(bench.give(client("d"), named()), Delta).finish is told


def test_what_failed_runs_anew() -> None:
    bench = Bench().fleet(member(A))
    finished(bench, 70, 71, finish=FinishReason.ERROR)
    assert only(bench.give(client("d"), named()), Adopt).request == 2


def test_replays_are_bounded() -> None:
    for bound in ({"idempotency__max_replays": 2}, {"idempotency__max_replay_tokens": 8}):
        bench = Bench(**bound).fleet(member(A))
        for number in range(1, 5):
            bench.give(client(number), named(idempotency=f"{number}/0"))
            bench.give(A, NotHeld(number, 1))
            bench.give(A, rows((number, 2, 3, 70), finish=FinishReason.LENGTH))
        kept = [bool(messages(bench.give(client(f"{n}'"), named(idempotency=f"{n}/0")), Delta)) for n in range(1, 5)]
        assert kept == [False, False, True, True]


def replayed(bench: factories.Bench, sampling: SamplingParams, answer: Callable[[int], list[Any]]) -> list[bool]:
    """Whether each of three answers, given one after another by what `answer(request)` tells, is replayed then."""
    for number in (1, 2, 3):
        bench.give(client(number), named(idempotency=f"{number}/0", sampling=sampling))
        bench.give(A, NotHeld(number, 1))
        for message in answer(number):
            bench.give(A, message)
    again = [bench.give(client(f"{n}'"), named(idempotency=f"{n}/0", sampling=sampling)) for n in (1, 2, 3)]
    return [bool(messages(sent, Delta)) for sent in again]


def test_log_probabilities_count_against_the_bound() -> None:
    bench = Bench(idempotency__max_replay_tokens=60).fleet(member(A))

    def answer(number: int) -> list[Any]:
        row = rows((number, 2, 3, 70), finish=FinishReason.LENGTH)
        return [replace(row, top_count=i32([20]), top_token=i32(range(20)), top_logprob=f32([-1.0] * 20))]

    assert replayed(bench, SamplingParams(logprobs=20), answer) == [False, True, True], "25 values each"


def test_what_its_client_cancelled_runs_anew() -> None:
    bench = Bench().fleet(member(A))
    finished(bench, 70, finish=FinishReason.RUNNING)
    bench.give(client("tool"), CancelById("req-2a-1"))
    assert only(bench.give(client("d"), named()), Adopt).request == 2


def test_log_probabilities_of_prompts_count_against_the_bound_too() -> None:
    bench = Bench(idempotency__max_replay_tokens=20).fleet(member(A))

    def answer(number: int) -> list[Any]:
        columns = f32([-1.0, -2.0]), i32([1, 1]), i32(range(4)), f32([-1.0] * 4)
        return [PromptScored(number, 2, 1, 2, *columns), rows((number, 2, 3, 70), finish=FinishReason.LENGTH)]

    assert replayed(bench, SamplingParams(prompt_logprobs=2), answer) == [False, True, True], "10 values each"
