"""Random orders to one engine: steps, interrupts, resumes, discards, closes. Knows no other engine and no tier."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.engine.soak.answers import UnansweredCommands
from benchmarks.engine.soak.engine_child import EngineChild, SoakError
from benchmarks.engine.soak.layer_change import LayerChangeOrders
from benchmarks.engine.soak.sequences import ReferenceText, SequenceBook, SoakSequence
from dunlin.messages.engine import (
    Close,
    Discard,
    Interrupt,
    Interrupted,
    Met,
    RemapDone,
    Resume,
    StepDone,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import Verdict, i64

STEPS_MOST = 6
"""Unanswered steps of one engine, of the sixteen that it takes."""
ROWS_MOST = 5
ANSWER_LIMIT_S = 300.0
OnTransfer = Callable[[TransferDone], None]
OnSteps = Callable[[Any], bool]


class EngineOrders:
    """Owns one engine's sequences and unanswered commands, and draws what it is told. `counts` of what came of it."""

    def __init__(self, child: EngineChild, draw: random.Random) -> None:
        ready = child.ready
        self.child = child
        self.name = child.address.name
        self.book = SequenceBook(self.name, ready.slots)
        self.asked = UnansweredCommands(self.name)
        self.counts: Counter[str] = Counter()
        self.layers = LayerChangeOrders(self.name, len(ready.layers), ready.layout, ready.slots)
        self.on_transfer: dict[int, OnTransfer] = {}
        self.on_steps: list[OnSteps] = []
        self._draw = draw
        self._steps = 0
        self._tickets = 0
        self._sequences = 0

    # --- numbers ---

    def step_number(self) -> int:
        """Of the next step."""
        self._steps += 1
        return self._steps

    def ticket(self) -> int:
        """Of the next interrupt or transfer."""
        self._tickets += 1
        return self._tickets

    def sequence_number(self) -> int:
        """Of the next sequence."""
        self._sequences += 1
        return self._sequences

    # --- orders ---

    def tell(self, *messages: Any) -> None:
        """Send commands, and note which are to be answered."""
        for message in messages:
            self.asked.asked(message)
        self.child.send(*messages)

    def open(
        self, text: ReferenceText, made: Sequence[int] = (), valid: int = 0, number: int = 0
    ) -> SoakSequence | None:
        """Open a sequence; None: there are no slots for it."""
        number = number or self.sequence_number()
        if (opened := self.book.add(number, text, made, valid)) is None:
            return None
        self.tell(opened)
        return self.book.open[number]

    def step(self, chosen: Sequence[SoakSequence] | None = None) -> int:
        """One step over random rows, or over those; its number. 0: none."""
        if not self.layers.may_compute or self.asked.steps >= STEPS_MOST:
            return 0
        if chosen is None:
            able = [each for each in self.book if each.may_run]
            chosen = self._draw.sample(able, min(len(able), self._draw.randint(1, ROWS_MOST)))
        if not chosen:
            return 0
        number = self.step_number()
        chunks = [self._draw.choice((1, 16, 40, 200, 1000)) for _ in chosen]
        self.tell(self.book.compose(number, chosen, chunks, self.layers.layout))
        return number

    def interrupt(self) -> None:
        """Some rows, or all, by either verdict; now and then two interrupts before the same safepoint."""
        for _ in range(self._draw.choice((1, 1, 1, 2))):
            running = [each for each in self.book if each.rows and not each.pinned]
            named = self._draw.sample(running, min(len(running), self._draw.randint(0, 2)))
            verdict = self._draw.choice((Verdict.SUSPEND, Verdict.SUSPEND, Verdict.DISCARD))
            ticket = self.ticket()
            for each in named or self.book.known():
                each.holds.add(ticket)
            message = Interrupt(verdict, i64(each.number for each in named), ticket=ticket, up_to_step=self._steps)
            self.tell(message)

    def resume(self) -> None:
        """Parked rows that stand at one place."""
        places: dict[tuple[int, int, int], list[SoakSequence]] = {}
        for each in self.book:
            if each.parked is not None and not each.holds:
                row, layer, block = each.parked
                places.setdefault((row.step, layer, block), []).append(each)
        if not places or not self.layers.may_compute or self.asked.steps >= STEPS_MOST + 2:
            return
        chosen = self._draw.choice(list(places.values()))
        number = self.step_number()
        self.book.resume(number, chosen)
        self.tell(Resume(number, i64(each.number for each in chosen)))

    def discard(self, everything: bool = False) -> None:
        """Forget some parked rows, or all."""
        parked = [each for each in self.book if each.parked is not None and not each.holds]
        chosen = parked if everything else parked[:1]
        for each in chosen:
            each.parked = None
        if chosen:
            self.tell(Discard(i64(each.number for each in chosen)))

    def close(self, each: SoakSequence) -> None:
        """Forget a sequence, whatever it does, and release its slots once they are not used."""
        self.tell(Close(each.number))
        self.book.close(each.number)

    def close_some(self) -> None:
        """One that has ended, and sometimes one that has not."""
        able = [each for each in self.book if not (each.pinned or each.leaving)]
        ended = [each for each in able if each.ended or each.doomed]
        for each in ended[:2] or (self._draw.sample(able, min(1, len(able))) if self._draw.random() < 0.1 else []):
            self.close(each)

    def change_layers(self) -> None:
        """The next phase of dropping or restoring layers, if it is time for it, and what a core does before it."""
        layers = self.layers
        if layers.wants_rest and not self._is_at_rest():
            self.resume() if self._draw.random() < 0.5 else self.discard(everything=True)
            return
        if layers.wants_empty:
            for each in self.book:
                self.close(each)
        self.tell(*layers.next_phase(self._draw, is_answered=not self.asked.phases))

    def _is_at_rest(self) -> bool:
        has_parked = any(each.parked is not None for each in self.book)
        return not has_parked and not self.asked.steps and not self.on_transfer and not self.on_steps

    # --- answers ---

    def listen(self, wait_s: float = 0.0) -> bool:
        """Take in what has been answered; whether anything was. :raises SoakError: an answer breaks the contract."""
        events = self.child.receive(wait_s)
        for event in events:
            self._on_event(event)
        return bool(events)

    def _on_event(self, event: Any) -> None:
        self.asked.answered(event)
        if any(takes(event) for takes in self.on_steps):
            return
        if isinstance(event, StepDone):
            self.book.on_done(event)
            self.counts["tokens computed"] += event.tokens_computed
        elif isinstance(event, Interrupted):
            self.counts["rows left"] += len(event.sequence)
            self.counts["rows parked"] += self.book.on_interrupted(event)
        elif isinstance(event, TransferDone):
            self.on_transfer.pop(event.ticket)(event)
            self.counts[f"transfers {event.status.name}"] += 1
        elif isinstance(event, RemapDone | Unsupported):
            self.layers.on_answer(event)
            if isinstance(event, RemapDone):
                self.counts[f"remap {event.phase.name}"] += 1
                self.book.slots.resize(event.slots)
                self.book.slots.withhold_beyond(min(event.slots, self.layers.whole_slots))
        elif not isinstance(event, Met):
            raise SoakError(f"{self.name} says {event}")
