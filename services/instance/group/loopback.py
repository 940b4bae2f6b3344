"""What a core sends to its own address: taken in at once, in order, before it takes in anything else.

So the leader of a group speaks to itself as to any other member.
"""

from collections import deque
from collections.abc import Callable

from dunlin.effects import Address, After, Effect, Message, Send

MAX_DELIVERIES = 1024
"""Messages to itself that are taken in on one occasion; the rest follow as timers that are due at once."""


class Loopback:
    """Runs `take(now_s, sender, message)` for a message, and for all that follow from it to `own`."""

    def __init__(self, own: Address, take: Callable[[float, Address, Message], list[Effect]]) -> None:
        self._own = own
        self._take = take

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """The effects on others."""
        effects: list[Effect] = []
        waiting: deque[Message] = deque()
        self._sort(self._take(now_s, sender, message), effects, waiting)
        for _ in range(MAX_DELIVERIES):
            if not waiting:
                return effects
            self._sort(self._take(now_s, self._own, waiting.popleft()), effects, waiting)
        return effects + [After(0.0, rest) for rest in waiting]

    def _sort(self, found: list[Effect], effects: list[Effect], waiting: deque[Message]) -> None:
        for effect in found:
            if isinstance(effect, Send) and effect.to == self._own:
                waiting.append(effect.message)
            else:
                effects.append(effect)
