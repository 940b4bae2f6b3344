"""Answers that ended lately, under the names that their tenants gave them: a retry gets them again.

Knows no instance and no client. What failed is not kept: a retry runs anew.
"""

from dataclasses import dataclass

from dunlin.cores.answer_cache import AnswerCache
from dunlin.messages.types import FinishReason
from services.dispatcher.requests.journal import Request


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """One answer. `request` is out of the journal and changes no more; `finish` as its readers are to be told."""

    request: Request
    finish: FinishReason


class ReplayCache:
    """Owns the answers: for `keep_s` seconds each, at most `most` of them and `most_tokens` in all."""

    def __init__(self, keep_s: float, most: int, most_tokens: int) -> None:
        self._answers: AnswerCache[CachedAnswer] = AnswerCache(keep_s, most, most_tokens)

    def add(self, now_s: float, request: Request, finish: FinishReason) -> None:
        """Keep a request that ended well, if its tenant named it."""
        submit = request.submit
        if not submit.idempotency or finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        if finish is FinishReason.STOP and (not request.generated_tokens or request.tokens[-1] not in submit.stop_ids):
            finish = (
                FinishReason.RUNNING
            )  # a stop string ended it: the door finds that in the text again, at the same place
        name = (submit.tenant, submit.idempotency)
        self._answers.put(now_s, name, CachedAnswer(request, finish), len(request.tokens))

    def find(self, now_s: float, tenant: str, idempotency: str) -> CachedAnswer | None:
        """The answer of that name, if it is still kept."""
        return self._answers.find(now_s, (tenant, idempotency))
