"""What the leader asks of a member, in its order: guests opened, grown and closed, and steps over them.

A step waits until the engine's queue has room and the group's step before it is answered, for it may read what that one
writes; so one place in the queue is left for the instance's own steps. What names a guest waits for the steps before it
that name it, too. Knows no order of a manager and no meeting of engines.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from dunlin.effects import Address, Effect, Send
from dunlin.messages.engine import Close, EngineReady, Open, Step, StepDone
from dunlin.messages.group import (
    CloseGuest,
    GroupStep,
    GroupStepDone,
    GrowGuest,
    GuestClosed,
    GuestReassigned,
    GuestRefused,
    GuestSlots,
    OpenGuest,
)
from dunlin.messages.types import I64, Figure, RejectedOption, Why, f32, i8, i32, i64
from services.instance.group.guests import MAX_GUESTS, Guest, GuestTable
from services.instance.group.member_step import (
    GuestRow,
    MemberPlace,
    StepRefusal,
    bind_rows,
    compose_step,
    named_guests,
    read_rows,
)
from services.instance.group.own_turns import OwnTurns
from services.instance.scheduling.step_ledger import StepLedger

MAX_WAITING = 256
"""Commands that may wait; a leader has two steps under way, and one question about a guest at a time."""

Command = OpenGuest | GrowGuest | CloseGuest | GroupStep


@dataclass(slots=True)
class RunningGroupStep:
    """The group's step that the engine has not answered, as its number there. `is_dropped`: its leader wants no answer;
    `closing` are the guests whose slots it may use until then; what else they have is kept if `keeps_guests`.
    """

    number: int
    asked: GroupStep
    step: Step
    rows: list[GuestRow]
    is_interrupted: bool = False
    is_dropped: bool = False
    keeps_guests: bool = False
    closing: list[Guest] = field(default_factory=list)


class GuestSteps:
    """Owns the commands that wait, the group's step in the engine, and the guests."""

    def __init__(self, engine: Address, steps: StepLedger, guests: GuestTable, turns: OwnTurns) -> None:
        self.guests = guests
        self._turns = turns
        self._engine = engine
        self._steps = steps
        self._waiting: deque[Command] = deque()
        self._running: RunningGroupStep | None = None
        self._leader = engine
        self._place = MemberPlace(0, {}, 0, 0)
        self._max_positions = 0

    def on_place(self, leader: Address, place: MemberPlace, ready: EngineReady) -> None:
        """Whose commands are taken from now on, and where this member stands."""
        self._leader, self._place, self._max_positions = leader, place, ready.max_positions

    @property
    def running(self) -> RunningGroupStep | None:
        """The group's step that the engine has not answered."""
        return self._running

    def probe(self) -> Effect:
        """Have the engine answer something: one that hangs is then found by its watch, whatever else it was asked."""
        return self._steps.probe()

    def add(self, command: Command) -> list[Effect]:
        """Take a command; `advance` carries it out."""
        if len(self._waiting) < MAX_WAITING or isinstance(command, CloseGuest):
            self._waiting.append(command)
            return []
        full = f"{MAX_WAITING} commands wait"
        if isinstance(command, GroupStep):
            return [self._refuse(command, full)]
        return [self._refuse_guest(command, full)]

    def reassign(self, told: GuestReassigned) -> None:
        """Another dispatcher has the request of a guest, open or to be opened anew."""
        guest = self.guests.get(told.sequence)
        if guest is not None:
            guest.opened = _reassigned(guest.opened, told)
        self._waiting = deque(
            _reassigned(each, told) if isinstance(each, OpenGuest) and each.sequence == told.sequence else each
            for each in self._waiting
        )

    def advance(self, now_s: float) -> list[Effect]:
        """Carry out what need not wait any more."""
        self._turns.note(now_s, self._running is not None)
        if not self._waiting:
            return []
        effects: list[Effect] = []
        commands, self._waiting = self._waiting, deque()
        in_steps = set() if self._running is None else named_guests(self._running.asked)
        asked_for: set[int] = set()
        is_held = False
        for command in commands:
            if isinstance(command, GroupStep):
                named = named_guests(command)
                is_held |= self._must_wait(now_s) or not asked_for.isdisjoint(named)
                effects += [] if is_held else self._start(now_s, command)
                in_steps |= named if is_held or self._running is not None else set()
                is_waiting = is_held
            else:
                is_waiting = command.sequence in asked_for or (command.sequence in in_steps and self._ends_use(command))
                asked_for |= {command.sequence} if is_waiting else set()
                effects += [] if is_waiting else self._carry_out(command)
            if is_waiting:
                self._waiting.append(command)
        return effects

    def _must_wait(self, now_s: float) -> bool:
        """Whether no step of the group may begin now."""
        is_full = self._running is not None or not self._steps.has_room
        return is_full or self._turns.is_own(now_s, self._steps.outstanding)

    def _ends_use(self, command: OpenGuest | GrowGuest | CloseGuest) -> bool:
        """Whether it takes something away that steps use: all but more slots."""
        guest = self.guests.get(command.sequence)
        return guest is not None and (not isinstance(command, GrowGuest) or command.slots < self.guests.slots(guest))

    def cancel(self, exchange: int) -> list[Effect]:
        """End the steps up to that exchange; each is answered, those that had not begun as if all rows had left."""
        effects: list[Effect] = []
        commands, self._waiting = self._waiting, deque()
        for command in commands:
            if isinstance(command, GroupStep) and command.exchange <= exchange:
                done = StepDone(0, i64(), i32(), f32(), i8(), left=command.sequence)
                effects.append(self._answer(command, done))
            else:
                self._waiting.append(command)
        running = self._running
        return effects + (self._interrupt() if running is not None and running.asked.exchange <= exchange else [])

    def end_with(self, gone: Collection[str]) -> list[Effect]:
        """End the running step if it needs an engine of one of these names."""
        running = self._running
        is_needed = running is not None and any(each.name in gone for each in running.step.peers)
        return self._interrupt() if is_needed else []

    def drop_all(self, keeps_guests: bool) -> list[Effect]:
        """Their leader wants nothing of the guests any more: end the running step, and free all slots once it has
        ended; or keep what has been computed for the next attempts of their requests, until the slots are needed.
        """
        self._waiting.clear()
        self._turns.forget()
        guests = self.guests.take_all()
        effects: list[Effect] = [Send(self._engine, Close(guest.number)) for guest in guests]
        if self._running is None:
            self._give_up(guests, keeps_guests)
            return effects
        self._running.is_dropped, self._running.keeps_guests = True, keeps_guests
        self._running.closing += guests
        return effects + self._interrupt()

    def suspects(self) -> tuple[int, I64]:
        """(exchange, its guests that the engine computes for) of the step that the engine computes, or did when it
        ended; (0, none): that is none of the group's.
        """
        running = self._executing
        if running is None or running.is_dropped:
            return 0, i64()
        return running.asked.exchange, i64(sorted(named_guests(running.asked)))

    def dropped_suspects(self) -> list[OpenGuest]:
        """The same of a step whose leader wants no answer any more: what it said of them last."""
        running = self._executing
        if running is None or not running.is_dropped:
            return []
        named = named_guests(running.asked)
        return [guest.opened for guest in running.closing if guest.number in named]

    @property
    def _executing(self) -> RunningGroupStep | None:
        """The group's step, if the engine computes it now."""
        running = self._running
        return running if running is not None and self._steps.oldest_step == running.number else None

    def on_engine_lost(self) -> None:
        """No step will be answered, and nothing that guests had is left."""
        self._waiting.clear()
        self._turns.forget()
        closing = self._running.closing if self._running is not None else []
        for guest in (*self.guests.take_all(), *closing):
            self.guests.release(guest)
        self.guests.forget_kept()
        self._running = None

    def __repr__(self) -> str:
        running = self._running.asked.exchange if self._running is not None else None
        return f"[guests: {len(self.guests)} | waiting: {len(self._waiting)} | running exchange: {running}]"

    # --- the engine's answers ---

    def on_done(self, done: StepDone) -> list[Effect]:
        """The engine's answer to the group's step: what its rows did not compute does not lie here."""
        running = self._end_running()
        gone = {*done.left, *done.dropped}
        for row in running.rows:
            if row.guest.number in gone:
                self._unbind(row)
        return [] if running.is_dropped else [self._answer(running.asked, done)]

    def on_refused(self, detail: str) -> list[Effect]:
        """The engine refused the group's step."""
        running = self._end_running()
        for row in running.rows:
            self._unbind(row)
        return [] if running.is_dropped else [self._refuse(running.asked, detail)]

    def _end_running(self) -> RunningGroupStep:
        running, self._running = self._running, None
        assert running is not None, "the ledger knows a group's step"
        if running.keeps_guests:
            for row in running.rows:
                self.guests.unbind_row(row.guest, row.covered)
        self._give_up(running.closing, running.keeps_guests)
        return running

    def _give_up(self, guests: list[Guest], keeps_guests: bool) -> None:
        for guest in guests:
            if keeps_guests:
                self.guests.keep(guest)
            else:
                self.guests.release(guest)

    def _unbind(self, row: GuestRow) -> None:
        if self.guests.get(row.guest.number) is row.guest:
            self.guests.unbind_row(row.guest, row.covered)

    def _interrupt(self) -> list[Effect]:
        running = self._running
        if running is None or running.is_interrupted:
            return []
        running.is_interrupted = True
        why = Why("group", "end the group's step", (Figure("exchange", running.asked.exchange),))
        return self._steps.interrupt_group_step(running.number, why)

    # --- steps ---

    def _start(self, now_s: float, asked: GroupStep) -> list[Effect]:
        try:
            rows = read_rows(asked, self.guests, self._place)
        except StepRefusal as error:
            return [self._refuse(asked, str(error))]
        bind_rows(rows, self.guests)
        number = self._steps.add_group_step(now_s)
        self._turns.begin(now_s)
        step = compose_step(number, asked, rows, self.guests, self._place)
        self._running = RunningGroupStep(number, asked, step, rows)
        return [Send(self._engine, step)]

    def _answer(self, asked: GroupStep, done: StepDone) -> Effect:
        return Send(self._leader, GroupStepDone(asked.group, asked.exchange, done))

    def _refuse(self, asked: GroupStep, refusal: str) -> Effect:
        return Send(self._leader, GroupStepDone(asked.group, asked.exchange, refusal=refusal))

    # --- guests ---

    def _carry_out(self, command: OpenGuest | GrowGuest | CloseGuest) -> list[Effect]:
        guest = self.guests.get(command.sequence)
        if isinstance(command, CloseGuest):
            return self._close(command, guest)
        if isinstance(command, OpenGuest):
            return self._open(command, guest)
        if guest is None:
            return [self._refuse_guest(command, "it is not open")]
        return [self._resize(command, guest)]

    def _open(self, asked: OpenGuest, known: Guest | None) -> list[Effect]:
        if wrong := self._wrong(asked, known):
            return [self._refuse_guest(asked, wrong)]
        guest = known or self.guests.add(asked)
        if known is None:
            self.guests.take_kept(guest)
        answer = self._resize(asked, guest)
        if isinstance(answer.message, GuestRefused):
            if known is None:
                self.guests.put_back(guest)
                answer = self._refuse_guest(asked, f"{asked.slots} slots")  # what is kept counts as available again
            return [answer]
        guest.opened = asked
        if known is not None:
            self.guests.unbind_all_but(guest, zip(asked.held_start, asked.held_stop, strict=True))
        closed = [] if known is None else [Send(self._engine, Close(guest.number))]
        return [*closed, Send(self._engine, self._opened(asked, guest)), answer]

    def _wrong(self, asked: OpenGuest, known: Guest | None) -> str:
        """Why the guest cannot be opened, whatever room there is; empty if it can."""
        most = min(asked.prompt_tokens + asked.max_tokens, self._max_positions)
        if not asked.elsewhere_tokens <= len(asked.tokens) or not 0 < len(asked.tokens) < most:
            return f"{len(asked.tokens)} tokens of at most {most}, {asked.elsewhere_tokens} with KV"
        if not _are_in_order(asked.held_start, asked.held_stop, asked.elsewhere_tokens):
            return f"tokens held here that are not in order, or beyond {asked.elsewhere_tokens}"
        return f"{MAX_GUESTS} guests are open" if known is None and len(self.guests) >= MAX_GUESTS else ""

    def _opened(self, asked: OpenGuest, guest: Guest) -> Open:
        """The guest as the engine is told of it: what lies here in its slots, the rest of its KV elsewhere."""
        starts, lengths, at = i64(), i64(), 0
        for start, stop in [*self.guests.spans(guest), (asked.elsewhere_tokens, asked.elsewhere_tokens)]:
            own = self.guests.extents(guest, start, stop) if start < stop else []
            for first, length in [(-1, start - at), *own] if at < start else own:
                starts.append(first)
                lengths.append(length)
            at = stop
        return Open(
            asked.sequence,
            asked.tokens,
            asked.prompt_tokens,
            asked.max_tokens,
            asked.sampling,
            asked.stop_ids,
            starts,
            lengths,
            adapter=asked.adapter,
        )

    def _resize(self, asked: OpenGuest | GrowGuest, guest: Guest) -> Send:
        held = self.guests.slots(guest)
        if not self.guests.resize(guest, asked.slots):
            return self._refuse_guest(asked, f"{asked.slots} slots, {held} are set aside")
        slots, available = self.guests.slots(guest), self.guests.available_slots
        spans = self.guests.spans(guest) if isinstance(asked, OpenGuest) and guest.opened is asked else []
        starts, stops = i64(start for start, _ in spans), i64(stop for _, stop in spans)
        return Send(self._leader, GuestSlots(asked.group, asked.sequence, slots, available, starts, stops))

    def _close(self, asked: CloseGuest, guest: Guest | None) -> list[Effect]:
        effects: list[Effect] = []
        if guest is not None:
            self.guests.close(guest)
            effects.append(Send(self._engine, Close(guest.number)))
        closed = GuestClosed(asked.group, asked.sequence, self.guests.available_slots)
        return [*effects, Send(self._leader, closed)]

    def _refuse_guest(self, asked: OpenGuest | GrowGuest, reason: str) -> Send:
        available = self.guests.available_slots
        why = Why("group", "refuse", (Figure("available_slots", available),), (RejectedOption("take it", reason),))
        guest = self.guests.get(asked.sequence)
        opened = asked if isinstance(asked, OpenGuest) else guest.opened if guest is not None else None
        of_whom = () if opened is None else (opened.dispatcher, opened.request, opened.attempt)
        return Send(self._leader, GuestRefused(asked.group, asked.sequence, available, why, *of_whom))


def _reassigned(opened: OpenGuest, told: GuestReassigned) -> OpenGuest:
    return replace(opened, dispatcher=told.dispatcher, request=told.request, attempt=told.attempt)


def _are_in_order(starts: I64, stops: I64, end: int) -> bool:
    """Whether these are spans of tokens before `end` that do not overlap, in order."""
    if len(starts) != len(stops):
        return False
    at = 0
    for start, stop in zip(starts, stops, strict=True):
        if not at <= start < stop <= end:
            return False
        at = stop
    return True
