"""Crashes of engines that are told after the attempt was over, for a group may end before its engine crashes.

An attempt that goes back takes along of what it is suspected; one whose group ended while an engine was silent cannot,
for that engine may crash later. Knows no group, and no attempt that is under way.
"""

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect
from dunlin.messages.dispatch import POISON, Suspected, suspicion_after_crash
from dunlin.messages.types import FinishReason
from services.dispatcher.lifecycle.completion import RequestCompletion, RequestTotals
from services.dispatcher.requests.journal import Journal


class LateCrashes:
    """Counts them in the request, and ends one that is poison. Engines that one attempt crashed count once."""

    def __init__(self, journal: Journal, completion: RequestCompletion, totals: RequestTotals) -> None:
        self._journal = journal
        self._completion = completion
        self._totals = totals

    @handles
    def on_suspected(self, now_s: float, sender: Address, message: Suspected) -> list[Effect]:
        """Its next attempt runs alone until it is past where it is now, or there is none."""
        request = self._journal.get(message.request)
        if request is None or not request.blamed_attempt < message.attempt <= request.attempt:
            self._totals.stale += 1
            return []
        request.blamed_attempt = message.attempt
        request.late_suspicion = suspicion_after_crash(request.suspicion_left, message.is_alone)
        # Apart from `trial_stop`, which is what the attempt under way says of itself whenever it goes on or back.
        request.late_trial_stop = len(request.tokens)
        if request.late_suspicion < POISON:
            return []
        text = f"poison request, stopped by its dispatcher: it crashed engines alone, the last at {sender.name}"
        return self._completion.abort_and_notify(now_s, request, FinishReason.ERROR, text)
