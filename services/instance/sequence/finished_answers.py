"""Answers that ended here lately, for a client whose dispatcher died before it could deliver them.

Every answer is kept for a while, delivered or not: an instance cannot know which tokens a hung dispatcher passed on.
Knows no slot and no message but `Place`.
"""

from dataclasses import dataclass, replace

from dunlin.cores.answer_cache import AnswerCache
from dunlin.messages.dispatch import Place
from dunlin.messages.types import I32, FinishReason, i32
from services.instance.sequence.sequence import Sequence


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
        """Keep the answer of an ended sequence, unless it has log-probabilities, which are not kept."""
        place, sampling = sequence.place, sequence.place.sampling
        if not place.key or sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            return
        # An adopting dispatcher compares tokens with the whole text; the reason of the placement is not needed again.
        answer = FinishedAnswer(replace(place, tokens=i32(), why=None), i32(sequence.tokens), finish)
        aliases = ((place.tenant, place.idempotency),) if place.idempotency else ()
        self._answers.put(now_s, place.key, answer, len(answer.tokens), *aliases)

    def lookup(self, now_s: float, key: str, tenant: str, idempotency: str) -> FinishedAnswer | None:
        """The answer of that request key or, without one, of the tenant's idempotency key; None if neither is kept."""
        return self._answers.find(now_s, key, (tenant, idempotency))
