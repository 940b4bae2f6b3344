"""The next token as a pure function: of the whole text, or of the seed and the position."""

import pytest

from simulator.engine.token_model import (
    VOCABULARY,
    AnswerTokenModel,
    PositionTokenModel,
    PrefixTokenModel,
    TokenModel,
    continuation,
    digest_of,
    expected_tokens,
    extend_digest,
    token_after,
)


def test_the_tokens_of_a_known_text_stay_what_they_are() -> None:
    """The digests of campaign seeds depend on them."""
    assert continuation([1, 2, 3], 5, seed=7) == [362, 988, 116, 402, 365]


def test_a_digest_covers_every_token_and_its_place() -> None:
    assert digest_of([]) == 0
    assert digest_of([4, 5]) == extend_digest(extend_digest(0, 4), 5)
    assert len({digest_of(text) for text in ([4, 5], [5, 4], [4], [4, 5, 0], [0, 4, 5])}) == 5
    assert 0 <= digest_of(range(100)) < 1 << 63


def test_each_change_of_the_text_or_of_the_seed_changes_what_follows() -> None:
    said = continuation(range(20), 8)
    assert said == continuation(range(20), 8, seed=0)
    changed = [
        continuation([*range(7), 99, *range(8, 20)], 8),
        continuation(range(19), 8),
        continuation(range(20), 8, 1),
    ]
    assert all(sum(a == b for a, b in zip(said, other, strict=True)) <= 1 for other in changed)
    assert all(0 <= token < VOCABULARY for token in said)


def test_an_answer_continues_from_any_of_its_tokens() -> None:
    """A request that is resumed after some of its tokens gets the rest of the same answer."""
    whole = continuation([8, 9], 10, seed=3)
    for held in range(10):
        assert continuation([8, 9, *whole[:held]], 10 - held, seed=3) == whole[held:]


def test_the_model_of_the_text_answers_as_the_continuation_does() -> None:
    model = PrefixTokenModel()
    state = model.begin([1, 2])
    token = model.next_token(state, 5, 2, 50)
    assert token == token_after(digest_of([1, 2]), 5, 50) < 50
    assert model.advance(state, token) == digest_of([1, 2, token])
    assert expected_tokens(model, [1, 2], 2, 6, 5, 50) == continuation([1, 2], 6, 5, 50)


def test_the_model_of_positions_depends_on_the_seed_and_the_position_alone() -> None:
    model = PositionTokenModel()
    assert (model.begin([1, 2]), model.advance(7, 9)) == (0, 0)
    whole = expected_tokens(model, [], 10, 6, 5, VOCABULARY)
    assert expected_tokens(model, [9, 9], 12, 4, 5, VOCABULARY) == whole[2:]
    assert expected_tokens(model, [], 10, 6, 6, VOCABULARY) != whole
    assert len(set(whole)) > 3


@pytest.mark.parametrize("model", [PrefixTokenModel(), PositionTokenModel()])
def test_no_token_is_outside_the_vocabulary(model: TokenModel) -> None:
    assert set(expected_tokens(model, [1], 1, 300, 2, 7)) == set(range(7))
    assert expected_tokens(model, [1], 1, 0, 2, 7) == []


def test_an_answer_ends_where_its_trace_does_and_nowhere_else() -> None:
    model = AnswerTokenModel({3: 10})
    said = [model.next_token(0, 3, length, 50) for length in range(1, 400)]
    assert [length for length, token in enumerate(said, 1) if token == 49] == [9]
    assert 49 not in [model.next_token(0, 4, length, 50) for length in range(1, 400)]
    assert len(set(said)) > 20
