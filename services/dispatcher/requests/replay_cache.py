"""Finished answers by tenant and idempotency key, kept for a while: a retry gets the answer again.

Knows no instance and no client. A failed request is not kept, so that its retry runs anew.
"""

from dataclasses import dataclass

from dunlin.cores.answer_cache import AnswerCache
from dunlin.messages.types import FinishReason
from services.dispatcher.requests.request import Request


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """One answer. `request` has left the journal and does not change; `finish` is what a reader gets."""

    request: Request
    finish: FinishReason


class ReplayCache:
    """Owns the answers: each for `keep_s` seconds, at most `most` of them and `most_tokens` tokens in all.

    Each log-probability counts as one token more: an answer may have twenty times as many of them as tokens.
    """

    def __init__(self, keep_s: float, most: int, most_tokens: int) -> None:
        self._answers: AnswerCache[CachedAnswer] = AnswerCache(keep_s, most, most_tokens)

    def add(self, now_s: float, request: Request, finish: FinishReason) -> None:
        """Keep a request that has an idempotency key and ended by STOP or LENGTH; others are ignored."""
        submit = request.submit
        if not submit.idempotency or finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        if finish is FinishReason.STOP and (not request.generated_tokens or request.tokens[-1] not in submit.stop_ids):
            # A stop string ended it. The door finds the string in the text again, at the same place.
            finish = FinishReason.RUNNING
        tokens = len(request.tokens) + request.kept_logprobs
        self._answers.put(now_s, (submit.tenant, submit.idempotency), CachedAnswer(request, finish), tokens)

    def find(self, now_s: float, tenant: str, idempotency: str) -> CachedAnswer | None:
        """The answer to the tenant's idempotency key; None if none is kept."""
        return self._answers.find(now_s, (tenant, idempotency))
