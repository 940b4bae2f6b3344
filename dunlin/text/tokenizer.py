"""A checkpoint's `tokenizer.json`: text to tokens and back."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as _Tokenizer

from dunlin.model.config_reader import read_json
from dunlin.model.errors import ModelError
from dunlin.text.chat_template import ChatTemplate
from dunlin.text.detokenizer import ByteDetokenizer, Detokenizer, TokenBytes, WindowDetokenizer, spoken_tokens
from dunlin.text.token_bounds import longest_token_bytes

SHORT_CHARACTERS = 4_096
"""A text of at most so many characters is encoded in the calling thread; see `Tokenizer.encode`."""

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that chat templates know by these names."""


class Tokenizer:
    """Encodes, decodes, and makes detokenizers for single texts. Immutable, but for a cache of tokens' texts."""

    def __init__(self, inner: _Tokenizer) -> None:
        # A tokenizer.json can switch both on. A truncated or padded prompt is not what the client sent.
        inner.no_truncation()
        inner.no_padding()
        described = json.loads(inner.to_str())
        self._inner = inner
        self._table = TokenBytes(inner) if _is_byte_level(described) else None
        self._spoken = spoken_tokens(inner) if self._table is None else frozenset()
        self._longest_bytes = longest_token_bytes(described)
        self._texts: dict[int, str] = {}

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, added tokens included."""
        return int(self._inner.get_vocab_size())

    def max_token_id(self) -> int:
        """The greatest token id of the vocabulary; -1 if it is empty."""
        return self._max_token_id

    @cached_property
    def _max_token_id(self) -> int:
        return max(self._inner.get_vocab().values(), default=-1)

    def max_text_id(self) -> int:
        """The greatest id of a token that is not special: plain text may become it; -1 if there is none."""
        special = {token for token, entry in self._inner.get_added_tokens_decoder().items() if entry.special}
        return max((token for token in self._inner.get_vocab().values() if token not in special), default=-1)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The tokens of `text`. A rendered chat has its special tokens in the text: encode it without adding any."""
        if len(text) <= SHORT_CHARACTERS:
            return list(self._inner.encode(text, add_special_tokens=add_special_tokens).ids)
        # The same ids in less time and memory: the batch call keeps no offsets. It runs in the library's thread pool
        # without the interpreter's lock, which costs a short text more than it saves.
        return list(self._inner.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids)

    def min_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens of `text`; 0 where none is known without encoding."""
        if self._longest_bytes is None:
            return 0
        return -(-len(text.encode(errors="replace")) // self._longest_bytes)

    def decode(self, tokens: list[int]) -> str:
        """The text of `tokens`, special tokens left out."""
        return str(self._inner.decode(tokens))

    def special_token(self, text: str) -> int | None:
        """The special token, which has no text of its own, that is called `text`; None if there is none."""
        token = self._inner.token_to_id(text)
        entry = self._inner.get_added_tokens_decoder().get(token) if token is not None else None
        return token if entry is not None and entry.special else None

    def detokenizer(self, before: Sequence[int] = ()) -> Detokenizer:
        """A new incremental decoder for one text, which goes on after that of the tokens `before`."""
        if self._table is None:
            return WindowDetokenizer(self._inner, self._spoken, before)
        return ByteDetokenizer(self._table)

    def token_text(self, token: int) -> str:
        """The text of a single token, special tokens included: for lists of likely tokens."""
        text = self._texts.get(token)
        if text is None:  # a door needs 21 of them with each token of each choice
            text = self._texts[token] = str(self._inner.decode([token], skip_special_tokens=False))
        return text

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; if the vocabulary is not byte-level, those of its text."""
        return self._table[token] if self._table is not None else self.token_text(token).encode()


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of the checkpoint in `directory`.

    Raises:
        ModelError: `tokenizer.json` is missing or broken.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelError(path, "no such file", "give a checkpoint with a tokenizer.json")
    try:
        return Tokenizer(_Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(path, f"is no tokenizer ({error})", "fetch or write the file again") from None


def check_tokenizer_matches_model(tokenizer: Tokenizer, vocab: int, directory: Path) -> None:
    """Check that the model in `directory`, with `vocab` embeddings, has one for every token that text may become.

    Special tokens may lack one, as Gemma 3's for images does in models of text alone: a prompt with it is refused.

    Raises:
        ModelError: the tokenizer has no tokens, or one without an embedding.
    """
    path = directory / "tokenizer.json"
    if tokenizer.max_token_id() < 0:
        raise ModelError(path, "has no tokens: every text would be empty", "fetch or write the file again")
    if tokenizer.max_token_id() >= vocab and (highest := tokenizer.max_text_id()) >= vocab:
        what = f"has token ids up to {highest}, config.json's `vocab_size` is {vocab}: such a token has no embedding"
        raise ModelError(path, what, "use the tokenizer.json that belongs to these weights")


def load_chat_template(directory: Path) -> ChatTemplate:
    """The chat template of the checkpoint in `directory`, or `DEFAULT_TEMPLATE` if it has none.

    Raises:
        ModelError: a file is broken, or the template does not compile.
    """
    path = directory / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    separate = directory / "chat_template.jinja"
    source = _read(separate) if separate.is_file() else config.get("chat_template")
    tokens = {key: _token_name(config.get(key)) for key in NAMED_TOKENS}
    path = separate if separate.is_file() else path
    named = _named_templates(source, path)
    return ChatTemplate(named.get("default"), tokens, path, named.get("tool_use"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(path, f"cannot be read ({error})", "fetch or write the file again") from None


def _named_templates(source: object, path: Path) -> dict[str, str]:
    """The templates by their names: one alone is the default, of several one must be."""
    if source is None:
        return {}
    if isinstance(source, str):
        return {"default": source}
    named = source if isinstance(source, dict) else {}
    if isinstance(source, list) and all(isinstance(entry, dict) for entry in source):
        named = {entry.get("name"): entry.get("template") for entry in source}
    if not isinstance(named.get("default"), str) or not all(isinstance(each, str) for each in named.values()):
        what = "`chat_template` is neither a text nor a list of texts by name with one called `default`"
        raise ModelError(path, what, "correct it, or write the template into chat_template.jinja")
    return named


def _token_name(value: object) -> str:
    """The text of a special token, which is given as itself or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _is_byte_level(described: dict[str, Any]) -> bool:
    decoder = described.get("decoder") or {}
    return bool(decoder.get("type") == "ByteLevel")
