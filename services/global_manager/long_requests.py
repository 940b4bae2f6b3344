"""The long requests that dispatchers asked a group for: those that wait, and what was promised to those that have one.

Owns the newest ask of each request until it is withdrawn, refused or its dispatcher is gone. A placed one stays: its
slots are promised for as long as it runs, whether the views show them or not. Knows no instance, policy or order.
"""

from collections.abc import Collection
from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.placement import LongPlaced, PlaceLong
from dunlin.messages.types import Why


@dataclass(slots=True)
class LongAsk:
    """One request that needs a group, asked for at `arrived_s`. Its dispatcher has had it since `since_s`, and `order`
    counts asks: both are kept when it is asked for again.

    `group` is the one that was chosen for it (0 while it waits), by `why`; `answer` is what its dispatcher was told.
    """

    dispatcher: Address
    message: PlaceLong
    order: int
    since_s: float
    arrived_s: float
    group: int = 0
    why: Why | None = None
    answer: LongPlaced | None = None

    @property
    def key(self) -> tuple[Address, int]:
        """What names its request."""
        return self.dispatcher, self.message.request

    @property
    def rank(self) -> tuple[int, bool, float, int]:
        """Its place in the queue: interactive requests first, of each class those whose clients have tokens already,
        then in the order in which they came to their dispatchers, whether they were refused before or not.
        """
        return int(self.message.request_class), not self.message.generated, self.since_s, self.order


class LongRequests:
    """Owns the asks by dispatcher and request, and by group. At most `most` of them may be without an answer."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._asks: dict[tuple[Address, int], LongAsk] = {}
        self._unanswered: dict[tuple[Address, int], LongAsk] = {}
        self._of_group: dict[int, dict[tuple[Address, int], LongAsk]] = {}
        self._arrivals = 0

    def find(self, dispatcher: Address, request: int) -> LongAsk | None:
        """The newest ask for that request; None: there is none."""
        return self._asks.get((dispatcher, request))

    def add(self, now_s: float, dispatcher: Address, message: PlaceLong) -> bool:
        """Queue an ask, instead of an older one for the same request; False: the queue is full."""
        before = self._asks.get((dispatcher, message.request))
        if before is not None:
            self.forget(before)
        if len(self._unanswered) >= self._most:
            return False
        self._arrivals += 1
        since_s, order = now_s - message.queued_s, self._arrivals
        if before is not None:
            since_s, order = before.since_s, before.order
        ask = LongAsk(dispatcher, message, order, since_s, now_s)
        self._asks[ask.key] = self._unanswered[ask.key] = ask
        return True

    def assign(self, ask: LongAsk, group: int, why: Why) -> None:
        """The group was chosen for it."""
        ask.group, ask.why = group, why
        self._of_group.setdefault(group, {})[ask.key] = ask

    def answer(self, ask: LongAsk, answer: LongPlaced) -> None:
        """Its dispatcher was told where it goes."""
        ask.answer = answer
        del self._unanswered[ask.key]

    def take_out(self, ask: LongAsk) -> None:
        """Its group is not for it any more: forget an ask that was answered, queue any other at its old place."""
        self._leave_group(ask)
        if ask.answer is not None:
            self.forget(ask)

    def forget(self, ask: LongAsk) -> None:
        """The ask is over: its slots are promised no more."""
        self._leave_group(ask)
        self._asks.pop(ask.key, None)
        self._unanswered.pop(ask.key, None)

    def of_dispatcher(self, dispatcher: Address) -> list[LongAsk]:
        """All asks of that dispatcher."""
        return [ask for ask in self._asks.values() if ask.dispatcher == dispatcher]

    def unanswered(self) -> list[LongAsk]:
        """Those whose dispatchers have no answer yet, in the order in which they are placed."""
        return sorted(self._unanswered.values(), key=lambda ask: ask.rank)

    def waiting(self) -> list[LongAsk]:
        """Those without a group, in the order in which they are placed."""
        return [ask for ask in self.unanswered() if not ask.group]

    @property
    def unanswered_count(self) -> int:
        """How many have no answer yet."""
        return len(self._unanswered)

    @property
    def answered_count(self) -> int:
        """How many have a group and were told so."""
        return len(self._asks) - len(self._unanswered)

    def is_used(self, group: int) -> bool:
        """Whether the group was chosen for a request that is not over."""
        return group in self._of_group

    def promised_slots(self, group: int) -> int:
        """Slots that all requests of the group may take in the end."""
        return sum(ask.message.longest for ask in self._of_group.get(group, {}).values())

    def keep_groups(self, numbers: Collection[int]) -> None:
        """Only these groups exist: what was placed in others is over, what was about to be waits again."""
        for number in [number for number in self._of_group if number not in numbers]:
            for ask in list(self._of_group[number].values()):
                self.take_out(ask)

    def _leave_group(self, ask: LongAsk) -> None:
        there = self._of_group.get(ask.group, {})
        there.pop(ask.key, None)
        if not there:
            self._of_group.pop(ask.group, None)
        ask.group = 0
