"""Answers that ended lately, under the names that their tenants gave them: a retry gets them again.

Knows no instance and no client; bounded by age, by number and by tokens. What failed is not kept: a retry runs anew.
"""

from collections import OrderedDict
from dataclasses import dataclass

from dunlin.messages.types import Finish
from services.dispatcher.journal import Request

Name = tuple[str, str]
"""(tenant, idempotency)."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One answer. `request` is out of the journal and changes no more; `finish` as its readers are to be told."""

    request: Request
    finish: Finish
    until_s: float


class Replays:
    """Owns the answers, oldest first: for `keep_s` each, at most `most` of them and `most_tokens` in all."""

    def __init__(self, keep_s: float, most: int, most_tokens: int) -> None:
        self.tokens = 0
        self._keep_s = keep_s
        self._most = most
        self._most_tokens = most_tokens
        self._answers: OrderedDict[Name, Replay] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def keep(self, now_s: float, request: Request, finish: Finish) -> None:
        """Keep a request that ended well, if its tenant named it."""
        submit = request.submit
        if not submit.idempotency or finish not in (Finish.STOP, Finish.LENGTH):
            return
        if finish is Finish.STOP and (not request.generated or request.tokens[-1] not in submit.stop_ids):
            finish = Finish.RUNNING  # a stop string ended it: the door finds that in the text again, at the same place
        name = (submit.tenant, submit.idempotency)
        self._drop(name)
        self._answers[name] = Replay(request, finish, now_s + self._keep_s)
        self.tokens += len(request.tokens)
        while len(self._answers) > self._most or self.tokens > self._most_tokens:
            self._drop(next(iter(self._answers)))

    def find(self, now_s: float, tenant: str, idempotency: str) -> Replay | None:
        """The answer of that name, if it is still kept."""
        while self._answers:
            name, oldest = next(iter(self._answers.items()))
            if oldest.until_s > now_s:
                break
            self._drop(name)
        return self._answers.get((tenant, idempotency))

    def _drop(self, name: Name) -> None:
        replay = self._answers.pop(name, None)
        if replay is not None:
            self.tokens -= len(replay.request.tokens)
