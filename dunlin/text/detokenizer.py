"""Incremental detokenising: whole characters only, at the same cost for the thousandth token as for the first.

All results of `push` and the one of `finish` together are the text of all tokens.
"""

import codecs
from typing import Protocol

from tokenizers import Tokenizer

# A window of tokens that still shows no whole character holds bytes that never will be one.
WINDOW_TOKENS = 8
REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """Incremental decoder of one text."""

    def push(self, token: int) -> str:
        """Take a token; returns the characters that are now complete."""
        ...

    def finish(self) -> str:
        """The text still held back, an incomplete character as the replacement character."""
        ...


def byte_alphabet() -> dict[str, int]:
    """How a byte-level vocabulary writes bytes: printable characters are themselves, the rest follow 255."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return table


class TokenBytes:
    """The bytes of every token of a byte-level vocabulary; special tokens have none. Made once per tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        alphabet = byte_alphabet()
        added = tokenizer.get_added_tokens_decoder()
        self._bytes = {
            token: bytes(alphabet[character] for character in text)
            for text, token in tokenizer.get_vocab(with_added_tokens=False).items()
            if token not in added and all(character in alphabet for character in text)
        }
        for token, entry in added.items():
            self._bytes[token] = b"" if entry.special else entry.content.encode()

    def __getitem__(self, token: int) -> bytes:
        return self._bytes.get(token, b"")


class ByteDetokenizer:
    """For byte-level vocabularies: bytes go through an incremental UTF-8 decoder."""

    def __init__(self, table: TokenBytes) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._table[token])

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other vocabulary: decodes a short window and hands out what the newest tokens added to it.

    Runs of byte tokens that are no UTF-8 at all may come out in other replacement characters than a decode of the
    whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._shown = ""
        self._emitted = 0

    def push(self, token: int) -> str:
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        pending = len(self._window) - self._emitted
        if (text.endswith(REPLACEMENT) and pending < WINDOW_TOKENS) or not text.startswith(self._shown):
            return ""
        return self._emit(text)

    def finish(self) -> str:
        return self._emit(self._tokenizer.decode(self._window))

    def _emit(self, text: str) -> str:
        """Return the new text. The next window starts with its tokens: a token's text may depend on the one before."""
        new = text[len(self._shown) :]
        self._window = self._window[self._emitted :] if self._emitted else self._window
        self._emitted = len(self._window)
        self._shown = self._tokenizer.decode(self._window)
        return new
