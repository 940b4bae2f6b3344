"""Cancellations that were sent and not yet answered, so that an old attempt is cancelled once and not at every token.

Knows no journal. Bounded, because an instance that never answers must not fill this process.
"""

from collections import OrderedDict

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Cancel
from dunlin.messages.types import Figure, Why

MAX_FENCES = 65_536


class AttemptFences:
    """Owns the newest cancelled attempt of each (instance, request number); beyond `most` the oldest is forgotten."""

    def __init__(self, most: int = MAX_FENCES) -> None:
        self._most = most
        self._sent: OrderedDict[tuple[Address, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    def cancel(self, instance: Address, number: int, attempt: int, cause: str) -> list[Effect]:
        """Cancel the request's attempts up to `attempt` at `instance`, unless a `Cancel` for them is on its way."""
        newest = self._sent.get((instance, number))
        if newest is not None and newest >= attempt:
            return []
        self._sent[instance, number] = attempt
        if len(self._sent) > self._most:
            self._sent.popitem(last=False)
        return [_cancel(instance, number, attempt, cause)]

    def on_ended(self, instance: Address, number: int, attempt: int) -> None:
        """The instance answered with `Ended`: a later message of this attempt would be cancelled anew."""
        newest = self._sent.get((instance, number))
        if newest is not None and newest <= attempt:
            del self._sent[instance, number]

    def on_instance_joined(self, instance: Address) -> list[Effect]:
        """There is a new stream to `instance`: what was sent on the last one may be lost, though it seemed open."""
        unanswered = [(number, attempt) for (to, number), attempt in self._sent.items() if to == instance]
        return [_cancel(instance, number, attempt, "no answer before") for number, attempt in unanswered]


def _cancel(instance: Address, number: int, attempt: int, cause: str) -> Effect:
    why = Why("dispatcher", f"cancel: {cause}", (Figure("attempt", attempt),))
    return Send(instance, Cancel(number, attempt, why))
