"""Incremental detokenising: whole characters as their tokens come, at a cost that does not grow with the text.

The pieces that `push` returned plus what `finish` returns are the text of all tokens together.
"""

import codecs
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Protocol

from tokenizers import Tokenizer

WINDOW_TOKENS = 8
"""Tokens of a window: if so many still end in an incomplete character, their bytes never become one."""
REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """Decodes the tokens of one text in order."""

    def push(self, token: int) -> str:
        """Append a token; the characters that are now complete."""
        ...

    def finish(self) -> str:
        """The rest of the text; an incomplete character becomes the replacement character."""
        ...


def byte_alphabet() -> dict[str, int]:
    """The byte of each character of a byte-level vocabulary: printable ones are themselves, the others follow 255."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return table


def _bytes_of(text: str, alphabet: Mapping[str, int]) -> bytes:
    """The bytes that a token stands for. One with other characters than the alphabet's is its own text."""
    if all(character in alphabet for character in text):
        return bytes(alphabet[character] for character in text)
    return text.encode()


class TokenBytes:
    """The bytes of every token of a byte-level vocabulary; special tokens have none. One per tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        alphabet = byte_alphabet()
        added = tokenizer.get_added_tokens_decoder()
        self._bytes = {
            token: _bytes_of(text, alphabet)
            for text, token in tokenizer.get_vocab(with_added_tokens=False).items()
            if token not in added
        }
        for token, entry in added.items():
            self._bytes[token] = b"" if entry.special else entry.content.encode()

    def __getitem__(self, token: int) -> bytes:
        return self._bytes.get(token, b"")


class ByteDetokenizer:
    """For byte-level vocabularies: decodes the tokens' bytes by an incremental UTF-8 decoder."""

    def __init__(self, table: TokenBytes) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._table[token])

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


def spoken_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that have a text: all of the vocabulary but the special ones."""
    special = {token for token, entry in tokenizer.get_added_tokens_decoder().items() if entry.special}
    return frozenset(tokenizer.get_vocab().values()) - special


class WindowDetokenizer:
    """For any other vocabulary: decodes a short window of tokens and returns what the newest ones added to its text.

    `spoken` are the tokens that have a text. The text goes on after that of the tokens `before`: alone, a first word
    would lose its space. Runs of byte tokens that are not valid UTF-8 may give other replacement characters than
    decoding the whole text.
    """

    def __init__(self, tokenizer: Tokenizer, spoken: frozenset[int], before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._spoken = spoken
        self._window = self._end_of(before)
        self._shown = tokenizer.decode(self._window)
        self._emitted = len(self._window)

    def _end_of(self, before: Sequence[int]) -> list[int]:
        """The last tokens that have a text, as many as a window takes, from the beginning of a character on."""
        spoken = (token for token in reversed(before) if token in self._spoken)
        window = [*islice(spoken, WINDOW_TOKENS)][::-1]
        while REPLACEMENT in self._tokenizer.decode(window):
            del window[0]
        return window

    def push(self, token: int) -> str:
        if token not in self._spoken:
            return ""  # in the window it would only push words out, before which the next one has its space
        self._window.append(token)
        new, pending = self._new_text(), len(self._window) - self._emitted
        if pending < WINDOW_TOKENS and (not new or new.endswith(REPLACEMENT)):
            return ""
        return self._emit(new)

    def finish(self) -> str:
        return self._emit(self._new_text())

    def _new_text(self) -> str:
        """What the tokens that were not shown add.

        A byte that is no character changes the text of all the bytes before it: shown ones stay, it counts by itself.
        """
        text = self._tokenizer.decode(self._window)
        if text.startswith(self._shown):
            return text[len(self._shown) :]
        return str(self._tokenizer.decode(self._window[self._emitted :]))

    def _emit(self, new: str) -> str:
        """`new` is shown. Its tokens begin the next window, since a token's text depends on the one before."""
        self._window = self._window[self._emitted :] if self._emitted else self._window
        self._emitted = len(self._window)
        self._shown = self._tokenizer.decode(self._window)
        return new
