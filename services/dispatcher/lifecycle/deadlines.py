"""The deadlines of a request's readers, each from its own `Submit`: the request ends with the last of them.

A retry that joined later may wait longer, or less long, than the client that came first. Knows no instance.
"""

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.door import Delta, Submit
from dunlin.messages.types import FinishReason, i32
from services.dispatcher.lifecycle.completion import RequestCompletion
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request
from services.dispatcher.requests.timers import DeadlineDue


class ReaderDeadlines:
    """Sets a timer for each reader that has a `timeout_s`, and ends what is due."""

    def __init__(self, journal: Journal, completion: RequestCompletion) -> None:
        self._journal = journal
        self._completion = completion

    def begin(self, request: Request, reader: Address, submit: Submit) -> list[Effect]:
        """`reader`, which sent `submit`, reads the request from now on."""
        if submit.timeout_s is None:
            return []
        return [After(submit.timeout_s, DeadlineDue(request.number, reader, submit.timeout_s))]

    @handles
    def on_deadline_due(self, now_s: float, sender: Address, message: DeadlineDue) -> list[Effect]:
        """End the request for this reader alone if others read it, else for good, also where its reader has left."""
        request = self._journal.get(message.request)
        if request is None:
            return []
        of = f" of {request.max_tokens}" if request.max_tokens else ""
        text = f"{message.timeout_s:g} s are over: {request.generated_tokens}{of} tokens were generated"
        if request.readers in ([], [message.reader]):
            return self._completion.abort_and_notify(now_s, request, FinishReason.DEADLINE, text)
        if message.reader not in request.readers:
            return []
        self._journal.remove_reader(message.reader)
        return [Send(message.reader, Delta(i32(), finish=FinishReason.DEADLINE, detail=text))]
