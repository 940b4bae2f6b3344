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
        why = Why("dispatcher", f"cancel: {cause}", (Figure("attempt", attempt),))
        return [Send(instance, Cancel(number, attempt, why))]

    def on_ended(self, instance: Address, number: int, attempt: int) -> None:
        """The instance answered with `Ended`: a later message of this attempt would be cancelled anew."""
        newest = self._sent.get((instance, number))
        if newest is not None and newest <= attempt:
            del self._sent[instance, number]

    def forget_instance(self, instance: Address) -> None:
        """The stream to `instance` ended, and with it every `Cancel` that was sent on it."""
        for key in [key for key in self._sent if key[0] == instance]:
            del self._sent[key]
