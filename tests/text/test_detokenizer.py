"""Incremental text equals the text of the whole, and no piece ends inside a character."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers

from dunlin.text.detokenizer import ByteDetokenizer, Detokenizer, TokenBytes, WindowDetokenizer, spoken_tokens
from dunlin.text.tokenizer import Tokenizer
from tests.text.builtin import BUILTIN, EMOJI

INNER = Inner.from_file(str(BUILTIN / "tokenizer.json"))
TABLE = TokenBytes(INNER)


def pieces_of(detokenizer: Detokenizer, tokens: list[int]) -> list[str]:
    return [*(detokenizer.push(token) for token in tokens), detokenizer.finish()]


def window(inner: Inner, before: Sequence[int] = ()) -> WindowDetokenizer:
    return WindowDetokenizer(inner, spoken_tokens(inner), before)


@given(st.lists(st.integers(0, 4095), max_size=60))
def test_any_tokens_give_the_text_of_the_whole(tokens: list[int]) -> None:
    assert "".join(pieces_of(ByteDetokenizer(TABLE), tokens)) == INNER.decode(tokens)


@given(st.text(max_size=40))
def test_valid_text_comes_back_without_replacement_characters(text: str) -> None:
    tokens = INNER.encode(text, add_special_tokens=False).ids
    pieces = pieces_of(ByteDetokenizer(TABLE), tokens)
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_a_character_of_several_tokens_comes_out_once_it_is_whole() -> None:
    tokens = INNER.encode(EMOJI, add_special_tokens=False).ids
    assert len(tokens) == 4, "the vocabulary knows this character only as bytes"
    assert pieces_of(ByteDetokenizer(TABLE), tokens) == ["", "", "", EMOJI, ""]


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    tokens = INNER.encode(EMOJI, add_special_tokens=False).ids[:2]
    assert pieces_of(ByteDetokenizer(TABLE), tokens) == ["", "", "\ufffd"]


def test_special_and_unknown_tokens_are_silent() -> None:
    assert pieces_of(ByteDetokenizer(TABLE), [0, 1, 99_999]) == ["", "", "", ""]


def test_a_token_outside_the_alphabet_is_its_own_text() -> None:
    inner = Inner(models.BPE({"a": 0, "▁x": 1, "Ġb": 2, "é": 3, "<｜é｜>": 4}, []))
    inner.decoder = decoders.ByteLevel()
    tokens = [0, 1, 2, 4, 3]
    assert (
        "".join(pieces_of(ByteDetokenizer(TokenBytes(inner)), tokens)) == inner.decode(tokens) == "a▁x b<｜é｜>\ufffd"
    )


@pytest.fixture(scope="module")
def spaces() -> Inner:
    """A vocabulary in the other fashion: a mark for the space, byte tokens for what it does not know."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁bird", "s", "▁sea", "é"]
    inner = Inner(
        models.BPE({word: place for place, word in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inner.decoder = decoders.Sequence(steps)
    return inner


def test_another_vocabulary_gives_the_text_of_the_whole_too(spaces: Inner) -> None:
    emoji = [1 + byte for byte in EMOJI.encode()]
    tokens = [258, 259, 260, *emoji, 261, 262, *emoji, *emoji, 258]
    pieces = pieces_of(window(spaces), tokens)
    assert "".join(pieces) == spaces.decode(tokens) == f"the birds{EMOJI} seaé{EMOJI}{EMOJI} the"
    assert "\ufffd" not in "".join(pieces[:-1])


PIECES = ["[UNK]", "the", "bird", "##s", "##ing", "sea", ".", ",", "!", "'", "don", "##'", "t", "n't", "é", "##é"]


@pytest.mark.parametrize("cleanup", [True, False])
@given(tokens=st.lists(st.integers(0, len(PIECES) - 1), max_size=40))
def test_word_pieces_give_the_text_of_the_whole(cleanup: bool, tokens: list[int]) -> None:
    inner = Inner(models.WordPiece({piece: place for place, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    inner.decoder = decoders.WordPiece(cleanup=cleanup)
    assert "".join(pieces_of(window(inner), tokens)) == inner.decode(tokens)


def test_a_window_stays_short_whatever_comes(spaces: Inner) -> None:
    detokenizer = window(spaces)
    for _ in range(200):
        detokenizer.push(1 + 0xFF)
        assert len(detokenizer._window) <= 16


def test_a_stray_byte_after_a_whole_character_holds_back_no_text(spaces: Inner) -> None:
    """The decoder replaces a whole run of byte tokens that does not end in a character, what was shown of it too."""
    emoji = [1 + byte for byte in EMOJI.encode()]
    tokens = [*emoji, 1 + 0xE2, *[259] * 20, 258]
    pieces = pieces_of(window(spaces), tokens)
    assert pieces == ["", "", "", EMOJI, "", "\ufffd bird", *[" bird"] * 19, " the", ""]


def test_a_window_stays_short_after_a_stray_byte(spaces: Inner) -> None:
    detokenizer = window(spaces)
    for token in [*(1 + byte for byte in EMOJI.encode()), 1 + 0xE2, *[259] * 50]:
        detokenizer.push(token)
        assert len(detokenizer._window) <= 16


def test_a_special_token_takes_no_space_from_the_next_word(spaces: Inner) -> None:
    inner = Inner.from_str(spaces.to_str())
    inner.add_special_tokens(["<mark>"])
    mark = inner.token_to_id("<mark>")
    assert mark is not None
    assert pieces_of(window(inner), [258, mark, 259]) == ["the", "", " bird", ""]


def test_silent_tokens_take_no_space_from_the_next_word_however_many(spaces: Inner) -> None:
    """A model that does not end at its end token may write it again and again, or ids that have no token."""
    inner = Inner.from_str(spaces.to_str())
    inner.add_special_tokens(["</s>"])
    tokens = [258, *[263] * 20, 259, *[9_999] * 20, 261]
    assert "".join(pieces_of(window(inner), tokens)) == inner.decode(tokens) == "the bird sea"


TEXTS = st.lists(st.sampled_from([*[[one] for one in range(257, 264)], *([1 + b for b in t.encode()] for t in "🦜é€")]))


@given(before=TEXTS, after=TEXTS)
def test_the_text_goes_on_after_what_is_before_it(
    spaces: Inner, before: list[list[int]], after: list[list[int]]
) -> None:
    """What the tokens add to the text of the prompt, as vLLM has it: the first word keeps its space."""
    prompt, tokens = ([one for part in parts for one in part] for parts in (before, after))
    whole, known = spaces.decode([*prompt, *tokens]), spaces.decode(prompt)
    assert "".join(pieces_of(window(spaces, prompt), tokens)) == whole[len(known) :]


def test_a_prompt_that_ends_inside_a_character_replaces_no_later_one(spaces: Inner) -> None:
    parrot = [1 + byte for byte in EMOJI.encode()]
    assert "".join(pieces_of(window(spaces, [*parrot[:2]] * 8), [259, *parrot])) == f"bird{EMOJI}"


def test_an_answer_goes_on_after_its_prompt(spaces: Inner) -> None:
    assert "".join(pieces_of(Tokenizer(spaces).detokenizer([258]), [259])) == " bird"
    assert "".join(pieces_of(Tokenizer(INNER).detokenizer([70]), INNER.encode(" bird").ids)) == " bird"


def test_the_tokenizer_picks_the_detokenizer_by_vocabulary(spaces: Inner) -> None:
    assert isinstance(Tokenizer(INNER).detokenizer(), ByteDetokenizer)
    assert isinstance(Tokenizer(spaces).detokenizer(), WindowDetokenizer)
