"""Answers that ended lately, under their names, for a client that asks again: bounded by age, by number and by tokens.

Used by the dispatcher (for a client's retry) and by the instance (for another dispatcher). Knows no message.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[V]):
    value: V
    tokens: int
    until_s: float
    aliases: tuple[Hashable, ...]


class AnswerCache(Generic[V]):
    """Owns the answers, oldest first: for `keep_s` seconds each, at most `most` of them and `most_tokens` in all."""

    def __init__(self, keep_s: float, most: int, most_tokens: int) -> None:
        self.tokens = 0
        self._keep_s = keep_s
        self._most = most
        self._most_tokens = most_tokens
        self._entries: OrderedDict[Hashable, _Entry[V]] = OrderedDict()
        self._aliases: dict[Hashable, Hashable] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, now_s: float, name: Hashable, value: V, tokens: int, *aliases: Hashable) -> None:
        """Keep an answer of so many tokens instead of an older one of that name; the oldest leave where it is much.

        `aliases` are other names that it is found by, until a newer answer has them.
        """
        self._expire(now_s)
        self._drop(name)
        self._entries[name] = _Entry(value, tokens, now_s + self._keep_s, aliases)
        self.tokens += tokens
        self._aliases.update(dict.fromkeys(aliases, name))
        while len(self._entries) > self._most or self.tokens > self._most_tokens:
            self._drop(next(iter(self._entries)))

    def find(self, now_s: float, *names: Hashable) -> V | None:
        """The answer of the first of these names or aliases that one is kept under."""
        self._expire(now_s)
        for name in names:
            entry = self._entries.get(self._aliases.get(name, name))
            if entry is not None:
                return entry.value
        return None

    def _expire(self, now_s: float) -> None:
        while self._entries:
            name, oldest = next(iter(self._entries.items()))
            if oldest.until_s > now_s:
                return
            self._drop(name)

    def _drop(self, name: Hashable) -> None:
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self.tokens -= entry.tokens
        for alias in entry.aliases:
            if self._aliases.get(alias) == name:
                del self._aliases[alias]
