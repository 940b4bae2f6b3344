"""Text out of tokens: merged for slow readers, cut at stop strings, without the token that ended it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.messages.door import Delta
from dunlin.messages.types import FinishReason, f32, i32
from services.dispatcher.doors.generation.output import OutputPiece, OutputProcessor
from tests.services.dispatcher.running_doors import TEXT, model

MODEL = model()
TOKENS = MODEL.tokenizer.encode(TEXT, add_special_tokens=False)


def processor(stops: Sequence[str] = ()) -> OutputProcessor:
    return OutputProcessor(MODEL.tokenizer.detokenizer(), stops)


def delta(*tokens: int, finish: FinishReason = FinishReason.RUNNING, detail: str = "") -> Delta:
    return Delta(i32(tokens), finish=finish, detail=detail)


def taken(text: OutputProcessor) -> OutputPiece:
    piece = text.drain()
    assert piece is not None
    return piece


def test_unfetched_output_comes_as_one_piece() -> None:
    text = processor()
    for token in TOKENS[:20]:
        text.push(delta(token))
    piece = taken(text)
    assert list(piece.tokens) == TOKENS[:20]
    assert MODEL.tokenizer.decode(TOKENS[:20]).startswith(piece.text)
    assert text.drain() is None


def test_a_piece_that_only_waits_for_a_character_is_worth_its_tokens() -> None:
    bird = MODEL.tokenizer.encode("🐦", add_special_tokens=False)
    assert len(bird) > 1
    text = processor()
    text.push(delta(bird[0]))
    piece = taken(text)
    assert (piece.text, list(piece.tokens)) == ("", bird[:1])
    for token in bird[1:]:
        text.push(delta(token))
    assert taken(text).text == "🐦"


@given(st.lists(st.integers(0, len(TOKENS) - 1), max_size=20).map(sorted))
def test_however_it_is_fetched_the_whole_is_the_same(fetches: list[int]) -> None:
    text = processor(["never there"])
    whole = OutputPiece()
    for index, token in enumerate(TOKENS):
        text.push(delta(token, finish=FinishReason.LENGTH if index == len(TOKENS) - 1 else FinishReason.RUNNING))
        if index in fetches and (piece := text.drain()) is not None:
            whole.extend(piece)
    if (piece := text.drain()) is not None and whole.finish is FinishReason.RUNNING:
        whole.extend(piece)
    assert (whole.text, list(whole.tokens), whole.finish) == (TEXT, TOKENS, FinishReason.LENGTH)
    assert list(whole.offsets) == sorted(whole.offsets)


def test_the_token_that_stopped_it_is_no_text() -> None:
    for last in (MODEL.eos_ids[0], TOKENS[0]):
        text = processor()
        text.push(delta(*TOKENS[:5], last, finish=FinishReason.STOP))
        piece = taken(text)
        assert piece.text == MODEL.tokenizer.decode(TOKENS[:5])
        assert (list(piece.tokens), piece.finish) == ([*TOKENS[:5], last], FinishReason.STOP)


def test_a_stop_string_ends_it_and_nothing_follows() -> None:
    text = processor(["small heron"])
    pushed = [text.push(delta(token)) for token in TOKENS]
    assert pushed.count(True) == 1
    piece = taken(text)
    assert (piece.text, piece.finish) == ("Once upon a time there was a ", FinishReason.STOP)
    assert len(piece.tokens) == pushed.index(True) + 1


def test_text_held_back_for_a_stop_string_comes_at_the_end() -> None:
    text = processor([". nothing like it"])
    end = MODEL.tokenizer.encode("the end.", add_special_tokens=False)
    text.push(delta(*end))
    assert taken(text).text == "the end"
    text.push(delta(TOKENS[0], finish=FinishReason.STOP))
    assert taken(text).text == "."


def test_half_a_character_at_the_end_is_a_replacement_character() -> None:
    bird = MODEL.tokenizer.encode("🐦", add_special_tokens=False)
    text = processor()
    text.push(delta(bird[0], finish=FinishReason.LENGTH))
    assert taken(text).text == "\ufffd"


def test_a_stop_string_in_the_last_character_is_found() -> None:
    bird = MODEL.tokenizer.encode("🐦", add_special_tokens=False)
    text = processor(["\ufffd"])
    text.push(delta(bird[0], finish=FinishReason.LENGTH))
    piece = taken(text)
    assert (piece.text, piece.finish) == ("", FinishReason.STOP)


@pytest.mark.parametrize("finish", [FinishReason.ERROR, FinishReason.DEADLINE, FinishReason.CANCELLED])
def test_an_error_keeps_its_detail(finish: FinishReason) -> None:
    text = processor()
    text.push(delta(TOKENS[0]))
    text.push(delta(finish=finish, detail="because"))
    piece = taken(text)
    assert (len(piece.tokens), piece.finish, piece.detail) == (1, finish, "because")
    text.fail("too late")
    assert text.finish is finish
    assert taken(text).detail == "because"


def test_failing_from_this_side() -> None:
    text = processor()
    text.fail("cut off")
    assert (taken(text).finish, taken(text).detail) == (FinishReason.ERROR, "cut off")
    assert text.push(delta(TOKENS[0])) is False
    assert list(taken(text).tokens) == []


def test_log_probabilities_keep_their_tokens() -> None:
    text = processor()
    for token in TOKENS[:3]:
        text.push(Delta(i32([token]), f32([-1.5]), i32([1]), i32([token]), f32([-1.5])))
    piece = taken(text)
    assert (list(piece.logprobs), list(piece.top_count)) == ([-1.5] * 3, [1, 1, 1])
    assert list(piece.top_token) == TOKENS[:3]
    assert len(piece.offsets) == 3


@pytest.mark.parametrize("together", [True, False])
def test_stop_strings_are_looked_for_after_the_least_tokens(together: bool) -> None:
    tokens = MODEL.tokenizer.encode("heron heron heron stood", add_special_tokens=False)
    least = len(MODEL.tokenizer.encode("heron heron", add_special_tokens=False))
    text = OutputProcessor(MODEL.tokenizer.detokenizer(), ["heron"], least)
    stopped = [text.push(delta(*part)) for part in ([tokens] if together else [[token] for token in tokens])]
    assert any(stopped)
    assert (taken(text).text, text.finish) == ("heron heron ", FinishReason.STOP)


def test_a_special_token_may_have_a_text() -> None:
    text = OutputProcessor(MODEL.tokenizer.detokenizer(), (), shown={6: "[CALLS]"})
    text.push(delta(TOKENS[0], 6, 5, TOKENS[1]))
    first, second = (MODEL.tokenizer.decode([token]) for token in TOKENS[:2])
    assert taken(text).text == f"{first}[CALLS]{second}"
