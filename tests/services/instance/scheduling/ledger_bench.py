"""An instance's core and an engine that parks rows, joined by two queues: each message waits until it is let through.

After every event of the core its ledger is compared with its sequences, and the slots are audited.
"""

from collections import Counter, deque
from typing import Any

from dunlin.effects import Address, Gone, Joined, Message, Send
from dunlin.messages.dispatch import Cancel
from dunlin.messages.engine import EngineExited
from dunlin.messages.types import Verdict
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import ENGINE, MANAGER, Attempt, D, Direct, Dispatcher, make_order, make_place
from tests.services.instance.scheduling.parking_engine import ParkingEngine

NOBODY = 999_999


class LedgerBench:
    """`commands` are on their way to the engine, `events` to the core. `late` are the words of engines that ended."""

    def __init__(self, *, slots: int = 128, **config: Any) -> None:
        self.direct = Direct(**config)
        self.core = self.direct.core
        self.dispatcher = Dispatcher(D)
        self.commands: deque[Message] = deque()
        self.events: deque[Message] = deque()
        self.late: list[tuple[Address, Message]] = []
        self.life = 0
        self.kv: dict[int, object] = {}
        self._ready = make_engine_ready(slots=slots)
        self.start_engine()
        self.give(MANAGER, make_order())
        self.give(D, Joined())

    @property
    def steps(self) -> Any:
        return self.core.steps

    @property
    def sequences(self) -> list[Sequence]:
        return self.core.sequences.by_arrival()

    # --- what happens ---

    def give(self, sender: Address, message: Message) -> list[Send]:
        """Feed the core one message; what it sends goes on its way."""
        sends = self.direct.give(sender, message)
        self._route(sends)
        self.check()
        return sends

    def start_engine(self) -> None:
        self.life += 1
        self.engine = ParkingEngine(self.kv)
        self.give(ENGINE, Joined())
        self.give(Address(ENGINE.role, ENGINE.name, self.life), self._ready)

    def crash(self, signal: int = 9) -> None:
        """The engine ends; what was on its way to it is lost, what it said last comes late."""
        self.engine.crash()
        self.late += [(Address(ENGINE.role, ENGINE.name, self.life), said) for said in self.events]
        self.commands.clear()
        self.events.clear()
        if signal == 11:
            self.kv.clear()
        self.give(ENGINE, EngineExited(0, signal))
        self.give(ENGINE, Gone("killed"))

    def place(self, request: int, **options: Any) -> Attempt:
        place = make_place(request, **options)
        attempt = self.dispatcher.attempts[request, place.attempt] = Attempt(place)
        self.give(D, place)
        return attempt

    def cancel(self, request: int) -> None:
        self.give(D, Cancel(request, 1))

    def interrupt(self, sequences: list[Sequence], verdict: Verdict) -> None:
        self._act(self.steps.interrupt(sequences, verdict))

    def recall(self) -> None:
        """The step behind the running one, if there is one."""
        for step in list(self.steps._outstanding)[1:]:
            self._act(self.steps.recall(step, []))

    def resume(self, sequences: list[Sequence]) -> None:
        self._act(self.steps.resume(sequences))

    def discard(self, sequences: list[Sequence]) -> None:
        self._act(self.steps.discard(sequences))

    def let_commands(self, count: int = 99) -> None:
        """The next `count` commands reach the engine."""
        for _ in range(min(count, len(self.commands))):
            self.engine.receive(self.commands.popleft())
        self._collect()

    def let_events(self, count: int = 99) -> None:
        """The next `count` events reach the core."""
        for _ in range(min(count, len(self.events))):
            self.give(Address(ENGINE.role, ENGINE.name, self.life), self.events.popleft())

    def tick(self, count: int = 1) -> None:
        """The engine goes on, by so many safepoints."""
        for _ in range(count):
            self.engine.tick()
        self._collect()

    def finish(self, rounds: int = 1000) -> None:
        """Let everything through until no sequence is left, or in so many rounds no token came and none ended: how many
        rounds all of them take depends on how many there are.
        """
        heard, left = -1, rounds
        while left and (len(self.core.sequences) or self.steps.unanswered):
            now = sum(len(attempt.heard) + len(attempt.tokens) for attempt in self.dispatcher.attempts.values())
            heard, left = now, left - 1 if now == heard else rounds
            self.let_commands()
            self.tick()
            self.let_events()
        self.let_commands()
        assert not len(self.core.sequences), f"still {self.core!r}: {self.sequences}"
        assert self.core.lifecycle.kv_cache.available_slots == self.core.slot_table.capacity
        assert (self.engine.sequences, self.engine.parked, self.steps.unanswered) == ({}, {}, 0)
        assert self.steps.parked_rows() == []

    # --- what must hold ---

    def check(self) -> None:
        """Each row is counted once, nothing is issued that is not valid or on its way, and slots add up."""
        self.core.lifecycle.kv_cache.check_integrity()
        on_the_way = [row for number, rows in self.steps._outstanding.items() for row in rows.rows(number)]
        on_the_way += self.steps._undecided.values()
        parked = self.steps.parked_rows()
        named = Counter(row.sequence for row in on_the_way)
        sampling = Counter(row.sequence for row in [*on_the_way, *parked] if row.samples)
        rows = [*on_the_way, *parked]
        for sequence in self.core.sequences:
            assert sequence.in_steps == named[sequence], f"{sequence}"
            assert sequence.pending == sampling[sequence], f"{sequence}"
            stops = [row.stop for row in rows if row.sequence is sequence]
            assert sequence.issued == max(stops, default=sequence.valid) >= sequence.valid, f"{sequence}"
            assert (sequence.state is SequenceState.PARKED) == self.steps.is_parked(sequence)
            assert self.core.lifecycle.kv_cache.held_positions(sequence) >= sequence.issued
        assert all(row.start >= row.sequence.valid for row in rows)
        assert self.steps.outstanding <= 2

    def _act(self, effects: list[Any]) -> None:
        self._route([effect for effect in effects if isinstance(effect, Send)])
        self.give(D, Cancel(NOBODY, 1))  # an event, after which the core composes steps

    def _route(self, sends: list[Send]) -> None:
        for send in sends:
            if send.to.role == "engine":
                self.commands.append(send.message)
            elif send.to == D and getattr(send.message, "request", 0) != NOBODY:
                self.dispatcher.receive(0.0, MANAGER, send.message)

    def _collect(self) -> None:
        self.events += self.engine.said
        self.engine.said.clear()
