"""The long requests that dispatchers asked a group for: those that wait, and what was promised to those that have one.

Owns the newest ask of each request until it is withdrawn, refused or its dispatcher is gone. A placed one stays: its
slots are promised for as long as it runs, whether the views show them or not. Knows no instance, policy or order.
"""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.placement import LongPlaced, PlaceLong
from dunlin.messages.types import Why


@dataclass(slots=True)
class LongAsk:
    """One request that needs a group. `order` counts arrivals; a request that is asked for again keeps its own.

    `group` is the one that was chosen for it (0 while it waits), by `why`; `answer` is what its dispatcher was told.
    """

    dispatcher: Address
    message: PlaceLong
    order: int
    arrived_s: float
    group: int = 0
    why: Why | None = None
    answer: LongPlaced | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Its place in the queue: interactive requests first, each class in order of arrival."""
        return int(self.message.request_class), self.order


class LongRequests:
    """Owns the asks by dispatcher and request. At most `most` of them may be without an answer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._asks: dict[tuple[Address, int], LongAsk] = {}
        self._arrivals = 0

    def find(self, dispatcher: Address, request: int) -> LongAsk | None:
        """The newest ask for that request; None: there is none."""
        return self._asks.get((dispatcher, request))

    def add(self, now_s: float, dispatcher: Address, message: PlaceLong) -> bool:
        """Queue an ask, instead of an older one for the same request; False: the queue is full."""
        before = self._asks.pop((dispatcher, message.request), None)
        if len(self.unanswered()) >= self._most:
            return False
        self._arrivals += 1
        order = before.order if before is not None else self._arrivals
        self._asks[dispatcher, message.request] = LongAsk(dispatcher, message, order, now_s)
        return True

    def forget(self, ask: LongAsk) -> None:
        """The ask is over: its slots are promised no more."""
        self._asks.pop((ask.dispatcher, ask.message.request), None)

    def forget_dispatcher(self, dispatcher: Address) -> None:
        """The dispatcher is gone: nobody is told any answer."""
        for key in [key for key in self._asks if key[0] == dispatcher]:
            del self._asks[key]

    def of_dispatcher(self, dispatcher: Address) -> list[LongAsk]:
        """All asks of that dispatcher."""
        return [ask for ask in self._asks.values() if ask.dispatcher == dispatcher]

    def unanswered(self) -> list[LongAsk]:
        """Those whose dispatchers have no answer yet, in the order in which they are placed."""
        return sorted((ask for ask in self._asks.values() if ask.answer is None), key=lambda ask: ask.rank)

    def waiting(self) -> list[LongAsk]:
        """Those without a group, in the order in which they are placed."""
        return [ask for ask in self.unanswered() if not ask.group]

    def answered(self) -> int:
        """How many have a group and were told so."""
        return sum(ask.answer is not None for ask in self._asks.values())

    def of_group(self, number: int) -> list[LongAsk]:
        """Those that the group was chosen for, answered or not."""
        return [ask for ask in self._asks.values() if ask.group == number]

    def promised_slots(self, number: int) -> int:
        """Slots that all requests of the group may take in the end."""
        return sum(ask.message.longest for ask in self.of_group(number))

    def keep_groups(self, numbers: dict[int, None]) -> None:
        """Only these groups exist: what was placed in others is over, what was about to be waits again."""
        for ask in list(self._asks.values()):
            if ask.group and ask.group not in numbers:
                self.take_out(ask)

    def take_out(self, ask: LongAsk) -> None:
        """Its group is not for it any more: forget an ask that was answered, queue any other at its old place."""
        ask.group = 0
        if ask.answer is not None:
            self.forget(ask)
