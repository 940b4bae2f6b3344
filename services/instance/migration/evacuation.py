"""Evacuations: which sequences migrate out for an `Evacuate` order of the manager, and the result of each order.

Also whether the instance drains. Orders of an older term, or older than the newest of this term, change nothing; a
repeated one is answered again. Knows no copy and no slot table: the course of a migration is `migrate_out.py`'s.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect, Send
from dunlin.messages.plan import Drain, DrainDone, Evacuate, EvacuateDone, Undrain
from dunlin.policies.rebalance import MovableSequence, cheapest_first
from services.instance.migration.migrate_out import MigrateOut
from services.instance.migration.outgoing import OutgoingMigration
from services.instance.scheduling.group_orders import GroupOrders
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable

MAX_RESULTS = 64
MOVABLE_STATES = (
    SequenceState.RUNNING,
    SequenceState.PARKED,
    SequenceState.WAITING,
    SequenceState.DRAINING,
    SequenceState.ASKING,
    SequenceState.SPILLING,
    SequenceState.RESTORING,
)

OrderId = tuple[int, int]
"""(epoch, ticket)."""


@dataclass(slots=True, eq=False)
class Evacuation:
    """One `Evacuate`: the sequences not started, the number under way, and the results of the others."""

    manager: Address
    order: Evacuate
    waiting: deque[Sequence] = field(default_factory=deque)
    migrating: int = 0
    moved: int = 0
    moved_slots: int = 0
    stayed: int = 0
    detail: str = ""

    def result(self) -> EvacuateDone:
        """The result of the order, for the manager."""
        order = self.order
        return EvacuateDone(order.epoch, order.ticket, self.moved, self.moved_slots, self.stayed, self.detail)


class Evacuations:
    """Owns the jobs, and whether this instance drains. At most `most` of their sequences migrate at once, however many
    are handed off beside them; `stale_total` counts fenced orders.
    """

    def __init__(self, sequences: SequenceTable, migrate_out: MigrateOut, group_orders: GroupOrders, most: int) -> None:
        self.draining = False
        self.stale_total = 0
        self._sequences = sequences
        self._migrate_out = migrate_out
        self._group_orders = group_orders
        self._most = most
        self._evacuations: dict[OrderId, Evacuation] = {}
        self._results: dict[OrderId, EvacuateDone] = {}
        self._newest: OrderId = (0, 0)

    @property
    def waiting(self) -> int:
        """The number of sequences chosen whose migration has not started."""
        total = 0
        for job in self._evacuations.values():
            total += len(job.waiting)
        return total

    @property
    def _migrating(self) -> int:
        """How many are under way for orders."""
        total = 0
        for job in self._evacuations.values():
            total += job.migrating
        return total

    @handles
    def drain(self, now_s: float, sender: Address, order: Drain | Undrain) -> list[Effect]:
        """Start or stop draining: a draining instance accepts no new attempts."""
        refusal = self._refusal((order.epoch, order.ticket))
        if not refusal:
            self._newest = (order.epoch, order.ticket)
            self.draining = isinstance(order, Drain)
            if not self.draining:
                self._forget_waiting()
        return [Send(sender, DrainDone(order.epoch, order.ticket, self.draining, refusal))]

    @handles
    def evacuate(self, now_s: float, sender: Address, order: Evacuate) -> list[Effect]:
        """Choose the sequences to evacuate, and start their migrations."""
        name = (order.epoch, order.ticket)
        if name in self._results:
            return [Send(sender, self._results[name])]
        if name in self._evacuations:
            self._evacuations[name].manager = sender
            return []
        refusal = self._refusal(name)
        if refusal:
            return [Send(sender, EvacuateDone(order.epoch, order.ticket, detail=refusal))]
        self._newest = name
        chosen = self._chosen(order)
        detail = "" if chosen else self._why_none(order)
        self._evacuations[name] = Evacuation(sender, order, deque(chosen), detail=detail)
        return self.advance()

    def advance(self) -> list[Effect]:
        """Start migrations up to the limit, and answer the orders that are done."""
        effects: list[Effect] = []
        for name, job in list(self._evacuations.items()):
            while job.waiting and self._migrating < self._most:
                sequence = job.waiting.popleft()
                if sequence.state in MOVABLE_STATES and not self._migrate_out.is_migrating(sequence):
                    job.migrating += 1
                    effects += self._migrate_out.start(sequence, job.order.target, job.order.why, self._count_end(job))
            if not job.waiting and job.migrating == 0:
                effects.append(self._finish(name, job))
        return effects

    def _count_end(self, job: Evacuation) -> Callable[[OutgoingMigration, str], None]:
        def ended(migration: OutgoingMigration, stays: str) -> None:
            job.migrating -= 1
            if stays:
                job.stayed += 1
                job.detail = stays
                if migration.is_target_silent:  # each of the others would wait for it as long
                    job.stayed += len(job.waiting)
                    job.waiting.clear()
            else:
                job.moved += 1
                job.moved_slots += len(migration.sequence.tokens)

        return ended

    def _chosen(self, order: Evacuate) -> list[Sequence]:
        able = [one for one in self._sequences.by_arrival() if self._is_movable(one)]
        chosen: list[Sequence] = []
        slots, room = order.slots, order.most_slots or inf
        for index in cheapest_first([MovableSequence(len(one.tokens), rank) for rank, one in enumerate(able)]):
            tokens = len(able[index].tokens)
            if slots <= 0 or tokens > room or (chosen and tokens > 2 * slots):
                break  # it would exceed the wanted slots by more than is still missing
            chosen.append(able[index])
            slots, room = slots - tokens, room - tokens
        return chosen

    def _why_none(self, order: Evacuate) -> str:
        """Why an order moves nothing; empty: there is nothing."""
        sizes = [len(one.tokens) for one in self._sequences.by_arrival() if self._is_movable(one)]
        if not sizes:
            return ""
        return f"the smallest of {len(sizes)} sequences has {min(sizes)} tokens, and {order.most_slots} may leave"

    def _is_movable(self, sequence: Sequence) -> bool:
        """Whether it may be chosen. A drained instance takes no sequence back, so that it gives every one away."""
        is_free = sequence.state in MOVABLE_STATES and not self._migrate_out.is_migrating(sequence)
        return is_free and not sequence.is_spread and (self.draining or sequence.may_move_on)

    def _finish(self, name: OrderId, job: Evacuation) -> Effect:
        del self._evacuations[name]
        answer = self._results[name] = job.result()
        if len(self._results) > MAX_RESULTS:
            del self._results[next(iter(self._results))]
        return Send(job.manager, answer)

    def _forget_waiting(self) -> None:
        for job in self._evacuations.values():
            job.waiting.clear()

    def _refusal(self, name: OrderId) -> str:
        newest = max(self._newest, (self._group_orders.epoch, 0))
        if name >= newest:
            return ""
        self.stale_total += 1
        return f"stale: this instance has heard of epoch {newest[0]}, ticket {newest[1]}"
