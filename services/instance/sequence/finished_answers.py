"""Answers that ended here lately, for a client whose dispatcher died before it could deliver them.

Every answer is kept for a while, delivered or not: an instance cannot know what a dispatcher that hangs has passed on.
Knows no slot and no message but `Place`.
"""

from dataclasses import dataclass, replace

from dunlin.cores.answer_cache import AnswerCache
from dunlin.messages.dispatch import Place
from dunlin.messages.types import I32, FinishReason, i32
from services.instance.sequence.table import Sequence


@dataclass(frozen=True, slots=True)
class FinishedAnswer:
    """A whole sequence, prompt included, and how it ended. `place` is without tokens and reason."""

    place: Place
    tokens: I32
    finish: FinishReason


class FinishedAnswers:
    """Owns the answers: for `keep_s` seconds each, at most `most` of them and `most_tokens` in all."""

    def __init__(self, keep_s: float, most: int, most_tokens: int) -> None:
        self._answers: AnswerCache[FinishedAnswer] = AnswerCache(keep_s, most, most_tokens)

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return self._answers.tokens

    def store(self, now_s: float, sequence: Sequence, finish: FinishReason) -> None:
        """Keep what a sequence became. Log-probabilities are not known any more: with them it is computed again."""
        place = sequence.place
        if not place.key or place.sampling.logprobs is not None:
            return
        # Who asks for it compares tokens with the whole text; why it was placed here was told when it was.
        answer = FinishedAnswer(replace(place, tokens=i32(), why=None), i32(sequence.tokens), finish)
        aliases = ((place.tenant, place.idempotency),) if place.idempotency else ()
        self._answers.put(now_s, place.key, answer, len(answer.tokens), *aliases)

    def lookup(self, now_s: float, key: str, tenant: str, idempotency: str) -> FinishedAnswer | None:
        """The answer of that key or, where there is none, of the tenant's own name for it."""
        return self._answers.find(now_s, key, (tenant, idempotency))
