"""Lets batch requests rise that have waited too long in the queue, or whose batch job is about to run out of time.

One that rises is queued and dispatched as an interactive request until it ends. `dunlin/policies/starvation.py` has the
rule; the queue is looked through at intervals, so that a message costs nothing. Knows no instance.
"""

from dunlin.messages.types import RequestClass, Why
from dunlin.policies.starvation import StarvationBound, choose_rising, why_it_rises
from services.dispatcher.config import DispatcherStarvationConfig
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request


class RequestRise:
    """Owns the time of the next look. `risen_total` counts the requests that rose."""

    def __init__(self, journal: Journal, config: DispatcherStarvationConfig) -> None:
        self.risen_total = 0
        self._journal = journal
        self._bound = StarvationBound(config.batch_wait_s, config.risen_share)
        self._next_look_s = 0.0

    def raise_starved(self, now_s: float) -> list[tuple[Request, Why]]:
        """Let the queued batch requests rise that are due, as far as the share allows, those that waited longest first.

        Those that rose, with the reasons.
        """
        deferred = self._journal.deferred
        if now_s < self._next_look_s:
            return []
        if not self._journal.queued_of(RequestClass.BATCH) and not deferred.count_of(RequestClass.BATCH):
            return []
        self._next_look_s = now_s + self._bound.look_interval_s
        waiting = list(self._journal.queued_in(RequestClass.BATCH))
        waiting += [one for one in deferred if one.dispatched_as is RequestClass.BATCH]
        stalled_s = [request.progress.stalled_s(len(request.tokens), now_s) for request in waiting]
        due = [index for index, request in enumerate(waiting) if self._cause(request, stalled_s[index], now_s)]
        if not due:
            return []
        risen, most = sum(request.is_risen for request in self._journal), self.most_risen
        rose: list[tuple[Request, Why]] = []
        for index in choose_rising([stalled_s[index] for index in due], most - risen):
            request, waited_s = waiting[due[index]], stalled_s[due[index]]
            why = why_it_rises(self._cause(request, waited_s, now_s), waited_s, risen, most)
            self._journal.rise(request)
            self.risen_total += 1
            risen += 1
            rose.append((request, why))
        return rose

    @property
    def most_risen(self) -> int:
        """How many may have risen at a time, of the requests that are dispatched now."""
        return self._bound.most_risen(len(self._journal) - self._journal.queued)

    def _cause(self, request: Request, stalled_s: float, now_s: float) -> str:
        """Why it is to rise; empty: it is not."""
        if request.rises_after_s(now_s) == 0:
            return "the completion window of its batch job is about to end"
        return "it made no progress for too long" if self._bound.is_starved(stalled_s) else ""
