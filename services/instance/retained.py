"""Answers that ended here lately, for a client whose dispatcher died before it could deliver them.

Every answer is kept for a while, delivered or not: an instance cannot know what a dispatcher that hangs has passed on.
Knows no slot and no message but `Place`; bounded by age, by number and by tokens.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace

from dunlin.messages.dispatch import Place
from dunlin.messages.types import I32, Finish, i32
from services.instance.sequences import Sequence


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole sequence, prompt included, and how it ended. `place` is without tokens and reason."""

    place: Place
    tokens: I32
    finish: Finish
    until_s: float


class Retained:
    """Owns the answers, oldest first: for `keep_s` each, at most `most` of them and `most_tokens` in all."""

    def __init__(self, keep_s: float, most: int, most_tokens: int) -> None:
        self.tokens = 0
        self._keep_s = keep_s
        self._most = most
        self._most_tokens = most_tokens
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._named: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def keep(self, now_s: float, sequence: Sequence, finish: Finish) -> None:
        """Keep what a sequence became. Log-probabilities are not known any more: with them it is computed again."""
        place = sequence.place
        if not place.key or place.sampling.logprobs is not None:
            return
        self._expire(now_s)
        self._drop(place.key)
        # Who asks for it compares tokens with the whole text; why it was placed here was told when it was.
        bare = replace(place, tokens=i32(), why=None)
        self._answers[place.key] = Answer(bare, i32(sequence.tokens), finish, now_s + self._keep_s)
        self.tokens += len(sequence.tokens)
        if place.idempotency:
            self._named[place.tenant, place.idempotency] = place.key
        while len(self._answers) > self._most or self.tokens > self._most_tokens:
            self._drop(next(iter(self._answers)))

    def find(self, now_s: float, key: str, tenant: str, idempotency: str) -> Answer | None:
        """The answer of that key or, where there is none, of the tenant's own name for it."""
        self._expire(now_s)
        return self._answers.get(key) or self._answers.get(self._named.get((tenant, idempotency), ""))

    def _expire(self, now_s: float) -> None:
        while self._answers:
            key, answer = next(iter(self._answers.items()))
            if answer.until_s > now_s:
                return
            self._drop(key)

    def _drop(self, key: str) -> None:
        answer = self._answers.pop(key, None)
        if answer is None:
            return
        self.tokens -= len(answer.tokens)
        name = (answer.place.tenant, answer.place.idempotency)
        if self._named.get(name) == key:
            del self._named[name]
