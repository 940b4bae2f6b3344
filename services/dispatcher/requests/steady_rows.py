"""The rows that steps of an instance have in common: nearly every step adds a token to each of those of the last.

Knows no journal and decides nothing. What is checked once for these rows needs no look at each of them in every step.
"""

from operator import eq

from dunlin.messages.dispatch import Tokens
from dunlin.messages.door import Delta, single_token_delta
from dunlin.messages.types import I32, I64
from services.dispatcher.requests.request import Request


class SteadyRows:
    """Rows of which each was a plain decode of its request's current attempt, for one reader each, in columns.

    `is_current`: no request of them has changed since but for its tokens.
    """

    def __init__(self, requests: list[Request], message: Tokens) -> None:
        self.is_current = True
        self.requests = requests
        self.readers = [request.readers[0] for request in requests]
        self._numbers: I64 = message.request
        self._attempts: I32 = message.attempt
        self._tokens = [request.tokens for request in requests]
        self._cached = [request.cached_tokens for request in requests]

    def are_of(self, message: Tokens) -> bool:
        """Whether a consistent batch has the very next token of each of these rows, and none of them ends."""
        return (
            message.request == self._numbers
            and message.attempt == self._attempts
            and not any(message.finish)
            and all(map(eq, map(len, self._tokens), message.position))
        )

    def extend(self, now_s: float, message: Tokens) -> list[Delta]:
        """Append the tokens to their requests; what each reader gets, in order."""
        for tokens, token in zip(self._tokens, message.token, strict=True):
            tokens.append(token)
        for request in self.requests:
            request.token_s = now_s
        return list(map(single_token_delta, message.token, self._cached))


def steady_rows(requests: list[Request], message: Tokens) -> SteadyRows | None:
    """The rows of a batch, each of which was a plain decode; None if one has no reader or several."""
    if any(len(request.readers) != 1 for request in requests):
        return None
    return SteadyRows(requests, message)
