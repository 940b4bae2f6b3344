"""Which cancellations were sent and not yet answered, so that one old attempt is cancelled once and not at every token.

Knows no request that lives; bounded, because an instance that never answers must not fill this process.
"""

from collections import OrderedDict

from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Cancel
from dunlin.messages.types import Figure, Why

MAX_FENCES = 65_536


class AttemptFences:
    """The newest attempt cancelled, by instance and request."""

    def __init__(self, most: int = MAX_FENCES) -> None:
        self._most = most
        self._sent: OrderedDict[tuple[Address, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    def cancel(self, instance: Address, number: int, attempt: int, cause: str) -> list[Effect]:
        """Cancel attempts up to `attempt` at `instance`, unless that was said before."""
        newest = self._sent.get((instance, number))
        if newest is not None and newest >= attempt:
            return []
        self._sent[instance, number] = attempt
        if len(self._sent) > self._most:
            self._sent.popitem(last=False)
        why = Why("dispatcher", f"cancel: {cause}", (Figure("attempt", attempt),))
        return [Send(instance, Cancel(number, attempt, why))]

    def on_ended(self, instance: Address, number: int, attempt: int) -> None:
        """`Ended` came."""
        newest = self._sent.get((instance, number))
        if newest is not None and newest <= attempt:
            del self._sent[instance, number]

    def forget_instance(self, instance: Address) -> None:
        """The stream is gone; a new one starts with nothing said."""
        for key in [key for key in self._sent if key[0] == instance]:
            del self._sent[key]
