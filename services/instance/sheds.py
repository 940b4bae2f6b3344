"""What the manager has this instance give away: which sequences of a `Shed` leave, how far it is, and what came of it.

Also whether the instance drains. Orders of an older term, or older than the newest of this term, change nothing; one
that comes again is answered again. Knows no copy and no slot table: how a sequence leaves, `departures.py` knows.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dunlin.effects import Address, Effect, Send
from dunlin.handlers import handles
from dunlin.messages.plan import Drain, DrainDone, Shed, ShedDone, Undrain
from dunlin.policies.rebalance import Movable, cheapest_first
from services.instance.departure import Departure
from services.instance.departures import Departures
from services.instance.orders import Orders
from services.instance.sequences import Sequence, Sequences, State

ANSWERS_KEPT = 64
GIVES = (State.RUNNING, State.WAITING, State.DRAINING, State.ASKING, State.SPILLING, State.RESTORING)

Name = tuple[int, int]
"""(epoch, ticket)."""


@dataclass(slots=True, eq=False)
class Job:
    """One `Shed`: who has not begun, how many are on their way, and what became of the others."""

    manager: Address
    order: Shed
    waiting: deque[Sequence] = field(default_factory=deque)
    leaving: int = 0
    moved: int = 0
    moved_slots: int = 0
    stayed: int = 0
    detail: str = ""

    def answer(self) -> ShedDone:
        """What became of it."""
        order = self.order
        return ShedDone(order.epoch, order.ticket, self.moved, self.moved_slots, self.stayed, self.detail)


class Sheds:
    """Owns the jobs, and whether this instance drains. `most` sequences leave at once; `stale_total` were fenced."""

    def __init__(self, sequences: Sequences, departures: Departures, orders: Orders, most: int) -> None:
        self.draining = False
        self.stale_total = 0
        self._sequences = sequences
        self._departures = departures
        self._orders = orders
        self._most = most
        self._jobs: dict[Name, Job] = {}
        self._answers: dict[Name, ShedDone] = {}
        self._newest: Name = (0, 0)

    @property
    def waiting(self) -> int:
        """How many sequences are to leave and have not begun."""
        total = 0
        for job in self._jobs.values():
            total += len(job.waiting)
        return total

    @handles
    def drain(self, now_s: float, sender: Address, order: Drain | Undrain) -> list[Effect]:
        """Take nothing new any more, or again."""
        refusal = self._refusal((order.epoch, order.ticket))
        if not refusal:
            self._newest = (order.epoch, order.ticket)
            self.draining = isinstance(order, Drain)
            if not self.draining:
                self._forget_waiting()
        return [Send(sender, DrainDone(order.epoch, order.ticket, self.draining, refusal))]

    @handles
    def shed(self, now_s: float, sender: Address, order: Shed) -> list[Effect]:
        """Choose who leaves, and begin."""
        name = (order.epoch, order.ticket)
        if name in self._answers:
            return [Send(sender, self._answers[name])]
        if name in self._jobs:
            self._jobs[name].manager = sender
            return []
        refusal = self._refusal(name)
        if refusal:
            return [Send(sender, ShedDone(order.epoch, order.ticket, detail=refusal))]
        self._newest = name
        self._jobs[name] = Job(sender, order, deque(self._chosen(order.slots)))
        return self.settle()

    def settle(self) -> list[Effect]:
        """Begin with whoever may, and answer the jobs that are over."""
        effects: list[Effect] = []
        for name, job in list(self._jobs.items()):
            while job.waiting and len(self._departures) < self._most:
                sequence = job.waiting.popleft()
                if sequence.state in GIVES and not self._departures.has(sequence):
                    job.leaving += 1
                    effects += self._departures.start(sequence, job.order.target, job.order.why, self._counted(job))
            if not job.waiting and job.leaving == 0:
                effects.append(self._finish(name, job))
        return effects

    def _counted(self, job: Job) -> Callable[[Departure, str], None]:
        def ended(departure: Departure, stays: str) -> None:
            job.leaving -= 1
            if stays:
                job.stayed += 1
                job.detail = stays
            else:
                job.moved += 1
                job.moved_slots += len(departure.sequence.tokens)

        return ended

    def _chosen(self, slots: int) -> list[Sequence]:
        able = [one for one in self._sequences.all() if one.state in GIVES and not self._departures.has(one)]
        chosen: list[Sequence] = []
        for index in cheapest_first([Movable(len(one.tokens), rank) for rank, one in enumerate(able)]):
            tokens = len(able[index].tokens)
            if slots <= 0 or (chosen and tokens > 2 * slots):
                break  # it would overshoot by more than it brings
            chosen.append(able[index])
            slots -= tokens
        return chosen

    def _finish(self, name: Name, job: Job) -> Effect:
        del self._jobs[name]
        answer = self._answers[name] = job.answer()
        if len(self._answers) > ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]
        return Send(job.manager, answer)

    def _forget_waiting(self) -> None:
        for job in self._jobs.values():
            job.waiting.clear()

    def _refusal(self, name: Name) -> str:
        newest = max(self._newest, (self._orders.epoch, 0))
        if name >= newest:
            return ""
        self.stale_total += 1
        return f"stale: this instance has heard of epoch {newest[0]}, ticket {newest[1]}"
