"""The queued requests that wait for a group: the placement of ordinary requests does not look at them.

Knows no manager and no instance.
"""

from collections.abc import Iterator

from dunlin.messages.types import RequestClass
from services.dispatcher.requests.request import Request


class DeferredRequests:
    """Owns them `by_number`, and what changed since the owner of their placement looked last.

    `entered` came since; `ended` are requests that a manager was asked about, and that have ended since, from wherever
    they were.
    """

    def __init__(self) -> None:
        self.entered: list[Request] = []
        self.ended: list[Request] = []
        self.by_number: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self.by_number)

    def __contains__(self, number: int) -> bool:
        return number in self.by_number

    def __iter__(self) -> Iterator[Request]:
        """Interactive requests first, of each class those that have generated tokens, then by age."""
        return iter(sorted(self.by_number.values(), key=_rank))

    def count_of(self, request_class: RequestClass) -> int:
        """How many of that class wait."""
        return sum(request.dispatched_as is request_class for request in self.by_number.values())

    def add(self, request: Request) -> None:
        """The request waits for a group."""
        request.is_deferred = True
        self.by_number[request.number] = request
        self.entered.append(request)

    def enter_again(self, request: Request) -> None:
        """What a manager was told of it holds no more: it has to be asked anew, for the same attempt."""
        request.asked_attempt = 0
        self.entered.append(request)

    def remove(self, request: Request) -> None:
        """It is dispatched, or has ended. Raises KeyError: it does not wait here."""
        del self.by_number[request.number]
        request.is_deferred = False

    def note_end(self, request: Request) -> None:
        """A request has ended: the manager that was asked about it has to know."""
        if request.asked is not None:
            self.ended.append(request)

    def take_changes(self) -> tuple[list[Request], list[Request]]:
        """`entered` and `ended`, which are empty from now on."""
        entered, self.entered = self.entered, []
        ended, self.ended = self.ended, []
        return entered, ended


def _rank(request: Request) -> tuple[int, bool, int]:
    return request.dispatched_as, not request.generated_tokens, request.number
