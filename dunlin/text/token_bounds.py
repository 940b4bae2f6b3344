"""The most text that one token can stand for, from a `tokenizer.json`: a long prompt can be refused without tokenising.

Where no bound can be proved (text is dropped, or any amount of it becomes one unknown token), there is none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dunlin.text.detokenizer import byte_alphabet

KEEPING_PRE_TOKENIZERS = ("ByteLevel", "Metaspace", "Digits", "UnicodeScripts")
CUTTING_PRE_TOKENIZERS = ("Split", "Punctuation")
"""Pre-tokenizers that keep all text unless their `behavior` is `Removed`."""
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))

TokenizerComponent = Mapping[str, Any]


def longest_token_bytes(described: TokenizerComponent) -> int | None:
    """The most UTF-8 bytes of text that one token can cover: n bytes are at least n / this number of tokens.

    `described` is the parsed `tokenizer.json`. None: no bound can be proved.
    """
    normalizers = _parts(described.get("normalizer"), "normalizers")
    pre_tokenizers = _parts(described.get("pre_tokenizer"), "pretokenizers")
    added: Sequence[TokenizerComponent] = described.get("added_tokens") or ()
    if not all(map(_never_shrinks, normalizers)) or not all(map(_keeps_text, pre_tokenizers)):
        return None
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None  # such a token swallows any number of spaces beside it
    lengths = _of_vocabulary(described["model"], any(part["type"] == "ByteLevel" for part in pre_tokenizers))
    if lengths is None:
        return None
    return max((*lengths, *(_grown(len(token["content"].encode()), normalizers) for token in added)))


def _of_vocabulary(model: TokenizerComponent, is_byte_level: bool) -> list[int] | None:
    """The bytes of each token, if the model can encode every text by its vocabulary; else None."""
    if model.get("type") != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    vocabulary: Mapping[str, int] = model["vocab"]
    if is_byte_level:  # a character stands for a byte
        return [len(token) for token in vocabulary] if _has(vocabulary, byte_alphabet()) else None
    if model.get("byte_fallback") and _has(vocabulary, BYTE_TOKENS):
        return [len(token.encode()) for token in vocabulary]
    return None


def _has(vocabulary: Mapping[str, int], names: Any) -> bool:
    return all(name in vocabulary for name in names)


def _parts(part: TokenizerComponent | None, inner: str) -> list[TokenizerComponent]:
    """The components of a component: those of a Sequence, flattened, else itself."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [found for one in part[inner] for found in _parts(one, inner)]
    return [part]


def _never_shrinks(normalizer: TokenizerComponent) -> bool:
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"].get("String", "")
        return bool(pattern) and len(normalizer["content"].encode()) >= len(pattern.encode())
    return bool(normalizer["type"] == "Prepend")


def _keeps_text(pre_tokenizer: TokenizerComponent) -> bool:
    kind = pre_tokenizer["type"]
    if kind in CUTTING_PRE_TOKENIZERS:
        return bool(pre_tokenizer.get("behavior") != "Removed")
    return kind in KEEPING_PRE_TOKENIZERS


def _grown(length: int, normalizers: Sequence[TokenizerComponent]) -> int:
    """The most bytes that normalising makes of `length` bytes: added tokens are matched in normalised text, too."""
    for part in normalizers:
        if part["type"] == "Prepend":
            length += len(part["prepend"].encode())
        else:
            length *= -(-len(part["content"].encode()) // len(part["pattern"]["String"].encode()))
    return length
