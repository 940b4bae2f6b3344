"""A lower bound of the token count that never refuses what fits; and ids that do not depend on how they were asked for.

On tokenizers of several kinds, trained here on a few sentences.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Inner

from dunlin.text.token_bounds import longest_token_bytes
from dunlin.text.tokenizer import SHORT_CHARACTERS, Tokenizer, load_tokenizer
from tests.text.builtin import BUILTIN

SENTENCES = [
    "Once upon a time there was a heron.",
    "the heron stood still, and the server 12 34",
    "äöü ナイーブ 🐦 e\u0301 ﬁ",
]
SPECIAL = ["<|end|>", "<unk>", "<s>"]
TEXTS = st.lists(
    st.sampled_from(
        ["heron", " ", "  ", "\n", "\t", "▁", "<|end|>", "<s>", "<mask>", "e\u0301", "ﬁ", "Å", "🐦", "\x00", "1"]
    )
    | st.text(max_size=12),
    max_size=30,
).map("".join)


def byte_level(**options: Any) -> Inner:
    made = Inner(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=options.pop("add_prefix_space", False))
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(made, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet))


def split_byte_level() -> Inner:
    """As Llama 3 and Qwen cut."""
    made = byte_level()
    split = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}{1,3}|\s+|[^\s\p{L}\p{N}]+"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return made


def byte_fallback() -> Inner:
    """As Llama 2's."""
    made = Inner(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = _trained(
        made,
        trainers.BpeTrainer(vocab_size=450, special_tokens=[*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]),
    )
    # As added tokens they would be looked for in texts; the real one has them in its vocabulary alone.
    described = json.loads(trained.to_str())
    described["added_tokens"] = [one for one in described["added_tokens"] if not one["content"].startswith("<0x")]
    return Inner.from_str(json.dumps(described))


def unigram() -> Inner:
    """As sentencepiece's."""
    made = Inner(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return _trained(made, trainers.UnigramTrainer(vocab_size=60, special_tokens=SPECIAL, unk_token="<unk>"))


def word_piece() -> Inner:
    made = Inner(models.WordPiece(unk_token="<unk>"))  # type: ignore[arg-type, unused-ignore]
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _trained(made, trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL))


def with_a_greedy_token() -> Inner:
    made = byte_level()
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    return made


def with_long_tokens() -> Inner:
    made = byte_fallback()
    made.add_tokens([AddedToken(" heron  heron", normalized=True), AddedToken("🐦🐦🐦🐦", normalized=False)])
    return made


def with_a_template() -> Inner:
    made = byte_level(add_prefix_space=True)
    made.post_processor = processors.TemplateProcessing("<s> $A <|end|>", special_tokens=[("<s>", 2), ("<|end|>", 0)])
    made.enable_truncation(8)
    made.enable_padding(length=16)
    return made


def _trained(made: Inner, trainer: Any) -> Inner:
    made.train_from_iterator(SENTENCES, trainer)
    return made


BOUNDED: list[Callable[[], Inner]] = [byte_level, split_byte_level, byte_fallback, with_long_tokens, with_a_template]
UNBOUNDED: list[Callable[[], Inner]] = [unigram, word_piece, with_a_greedy_token]


@cache
def tokenizer(make: Callable[[], Inner]) -> Tokenizer:
    return Tokenizer(make())


@pytest.mark.parametrize("make", [*BOUNDED, *UNBOUNDED])
@given(text=TEXTS, special=st.booleans())
@settings(max_examples=40)
def test_a_long_text_gets_the_ids_that_it_would_have_as_a_short_one(
    make: Callable[[], Inner], text: str, special: bool
) -> None:
    made = tokenizer(make)
    plain, fast = (
        made._inner.encode(text, add_special_tokens=special).ids,
        made._inner.encode_batch_fast([text], add_special_tokens=special)[0].ids,
    )
    assert plain == fast == made.encode(text, add_special_tokens=special)


@pytest.mark.parametrize("make", [*BOUNDED, *UNBOUNDED])
def test_the_same_on_both_sides_of_the_limit(make: Callable[[], Inner]) -> None:
    made = tokenizer(make)
    text = "Once upon a time <|end|> e\u0301 ﬁ 🐦\n" * 200
    for length in (SHORT_CHARACTERS, SHORT_CHARACTERS + 1, len(text)):
        assert made.encode(text[:length]) == list(made._inner.encode(text[:length]).ids)


@pytest.mark.parametrize("make", BOUNDED)
@given(text=TEXTS, special=st.booleans())
@settings(max_examples=40)
def test_there_are_never_fewer_tokens_than_the_bound(make: Callable[[], Inner], text: str, special: bool) -> None:
    made = tokenizer(make)
    assert len(made.encode(text, add_special_tokens=special)) >= made.min_tokens(text)


@pytest.mark.parametrize("make", BOUNDED)
def test_the_bound_grows_with_the_text(make: Callable[[], Inner]) -> None:
    assert tokenizer(make).min_tokens("heron" * 1_000) >= 5_000 / 64


@pytest.mark.parametrize("make", UNBOUNDED)
def test_where_nothing_can_be_proved_there_is_no_bound(make: Callable[[], Inner]) -> None:
    assert tokenizer(make).min_tokens("heron" * 1_000) == 0


def test_the_built_in_one() -> None:
    made = load_tokenizer(BUILTIN)
    assert made.min_tokens("x" * 1_000) >= 50
    assert made.min_tokens("\ud800") <= 1


def test_a_file_that_cuts_and_fills_up_does_neither() -> None:
    made = tokenizer(with_a_template)
    assert len(made.encode("heron " * 100, add_special_tokens=False)) > 16
    assert len(made.encode("x", add_special_tokens=False)) < 16


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "ab"}, "content": "c"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": "▁▁▁"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "behavior": "Removed"}]}},
        {"added_tokens": [{"content": "x", "lstrip": True}]},
        {"model": {"type": "BPE", "vocab": {"a": 0}}},
        {"model": {"type": "WordLevel", "vocab": {"a": 0}}},
    ],
)
def test_what_takes_the_bound_away(change: dict[str, Any]) -> None:
    described = json.loads(byte_level().to_str())
    assert longest_token_bytes(described) is not None
    assert longest_token_bytes(described | change) is None


def test_a_suffix_of_words_takes_the_bound_away() -> None:
    described = json.loads(byte_level().to_str())
    described["model"]["end_of_word_suffix"] = "</w>"
    assert longest_token_bytes(described) is None


def test_an_added_token_counts_as_long_as_normalised_text_makes_it() -> None:
    described = json.loads(byte_fallback().to_str())
    described["added_tokens"] = [{"content": " " * 100}]
    assert longest_token_bytes(described) == (100 + len("▁".encode())) * len("▁".encode())
