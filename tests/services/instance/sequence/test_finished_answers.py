"""Finished answers: which are kept, for how long, and by which names they are found."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.dispatch import Place
from dunlin.messages.types import FinishReason, SamplingParams, Why, i32
from services.instance.sequence.finished_answers import FinishedAnswers
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.table import SequenceTable

DISPATCHER = Address("dispatcher", "d", 1)


def ended(key: str = "req-1-1", tokens: int = 3, **fields: Any) -> Sequence:
    place = Place(1, 1, i32([5, 6]), 2, 9, why=Why("p", "c"), **({"key": key, "tenant": "t"} | fields))
    sequence = SequenceTable().add(DISPATCHER, place)
    sequence.tokens += range(tokens)
    return sequence


def test_an_answer_has_the_whole_text_and_the_place_without_it() -> None:
    answers = FinishedAnswers(10.0, 4, 100)
    answers.store(1.0, ended(), FinishReason.STOP)
    answer = answers.lookup(2.0, "req-1-1", "t", "")
    assert answer is not None
    assert (list(answer.tokens), answer.finish) == ([5, 6, 0, 1, 2], FinishReason.STOP)
    assert (list(answer.place.tokens), answer.place.why, answer.place.prompt_tokens) == ([], None, 2)
    assert (len(answers), answers.tokens) == (1, 5)


@pytest.mark.parametrize("fields", [{"key": ""}, {"sampling": SamplingParams(logprobs=0)}])
def test_without_a_key_or_with_log_probabilities_it_is_not_kept(fields: dict[str, Any]) -> None:
    answers = FinishedAnswers(10.0, 4, 100)
    answers.store(1.0, ended(**fields), FinishReason.STOP)
    assert len(answers) == 0


def test_an_answer_is_kept_for_its_time() -> None:
    answers = FinishedAnswers(10.0, 4, 100)
    answers.store(1.0, ended(), FinishReason.STOP)
    assert answers.lookup(10.9, "req-1-1", "t", "") is not None
    assert answers.lookup(11.1, "req-1-1", "t", "") is None


def test_the_idempotency_key_finds_it_in_its_own_tenant_alone() -> None:
    answers = FinishedAnswers(10.0, 4, 100)
    answers.store(1.0, ended(idempotency="once"), FinishReason.STOP)
    assert answers.lookup(2.0, "req-9-9", "t", "once") is not None
    assert answers.lookup(2.0, "req-9-9", "other", "once") is None
    assert answers.lookup(2.0, "req-9-9", "t", "") is None


@pytest.mark.parametrize(("most", "most_tokens"), [(2, 1000), (9, 11)])
def test_the_oldest_answers_make_room(most: int, most_tokens: int) -> None:
    answers = FinishedAnswers(10.0, most, most_tokens)
    for number in range(3):
        answers.store(1.0, ended(f"req-1-{number}"), FinishReason.LENGTH)
    assert [answers.lookup(1.0, f"req-1-{number}", "t", "") is not None for number in range(3)] == [False, True, True]
