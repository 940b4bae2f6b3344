"""The queued requests of one class, in the order in which they are dispatched. Knows no instance."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.dispatcher.requests.journal import Request

_NUMBER = attrgetter("number")


class RequestQueue:
    """Owns the order: requests that were dispatched before, and batch ones that rose, precede new ones; among each
    kind the oldest is first.
    """

    def __init__(self) -> None:
        self._requeued: list[Request] = []
        self._fresh: OrderedDict[int, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requeued) + len(self._fresh)

    def __iter__(self) -> "Iterator[Request]":
        return chain(self._requeued, self._fresh.values())

    @property
    def requeued(self) -> "list[Request]":
        """Those that were dispatched before or rose, oldest first."""
        return self._requeued

    def add(self, request: "Request") -> None:
        """Queue a new request: the youngest."""
        self._fresh[request.number] = request

    def requeue(self, request: "Request") -> None:
        """Queue a request that was dispatched before, or rose."""
        insort(self._requeued, request, key=_NUMBER)

    def remove(self, request: "Request") -> None:
        """Take a queued request out. Raises ValueError: it is not queued."""
        if self._fresh.pop(request.number, None) is None:
            self._requeued.remove(request)
