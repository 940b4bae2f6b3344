"""Any order of what a leader asks and an engine answers: every slot is in one place, and none is left when all ends."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dunlin.effects import Address, Gone
from dunlin.messages.engine import Close, Open, Step, Unsupported
from dunlin.messages.group import (
    CancelGroupSteps,
    CloseGuest,
    GroupStepDone,
    GrowGuest,
    GuestClosed,
    GuestRefused,
    GuestsLost,
    GuestSlots,
    JoinGroup,
    MeetMembers,
    MemberEngine,
)
from dunlin.messages.types import GroupKind, i32, i64
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import ENGINE, MANAGER, ME
from tests.services.instance.group.member_bench import (
    AGENT,
    GROUP,
    LEADER,
    SLOTS,
    THIRD,
    Part,
    Row,
    Span,
    answered,
    elastic,
    group_step,
    member,
    open_guest,
)

NUMBERS = st.integers(1, 2)
ROWS = st.lists(NUMBERS, min_size=1, max_size=2, unique=True)
TOKENS = 150


class GuestMachine(RuleBasedStateMachine):
    """`asked_…`: questions of the leader without an answer. `steps`: the engine's, that it has not answered."""

    def __init__(self) -> None:
        super().__init__()
        self.direct = member()
        self.steps: dict[int, Step] = {}
        self.opened: set[int] = set()
        self.exchange = 0
        self.asked_guests = self.asked_closes = self.asked_steps = 0
        self.version = 2
        self.generation = 0
        self.is_up = True
        self.has_leader = True
        self.begin()

    def give(self, sender: Address, message: Any) -> None:
        """Every question has one answer, steps name open sequences and slots that no other step writes."""
        for send in self.direct.give(sender, message):
            said = send.message
            if send.to == ENGINE:
                self.on_command(said)
            elif isinstance(said, GuestsLost):
                self.asked_guests = self.asked_closes = self.asked_steps = 0
            self.asked_guests -= isinstance(said, GuestSlots | GuestRefused)
            self.asked_closes -= isinstance(said, GuestClosed)
            self.asked_steps -= isinstance(said, GroupStepDone)

    def on_command(self, said: Any) -> None:
        if isinstance(said, Open):
            assert said.sequence not in self.opened
            self.opened.add(said.sequence)
        elif isinstance(said, Close):
            self.opened.remove(said.sequence)
        elif isinstance(said, Step):
            assert set(said.sequence) <= self.opened
            self.steps[said.step] = said

    # --- the leader ---

    @property
    def may_ask(self) -> bool:
        return self.has_leader and self.is_up

    def number(self, number: int) -> int:
        """None of before an end is used again."""
        return self.generation << 8 | number

    @precondition(lambda self: self.may_ask)
    @rule(number=NUMBERS, slots=st.integers(0, 200), ends=st.lists(st.integers(0, TOKENS), max_size=5, unique=True))
    def open(self, number: int, slots: int, ends: list[int]) -> None:
        self.asked_guests += 1
        ends = sorted(ends)
        held = {"held_start": i64(ends[0:-1:2]), "held_stop": i64(ends[1::2])}
        elsewhere = ends[-1] if ends else 0
        self.give(LEADER, open_guest(slots, TOKENS, self.number(number), elsewhere_tokens=elsewhere, **held))

    @precondition(lambda self: self.may_ask)
    @rule(number=NUMBERS, slots=st.integers(0, 250))
    def grow(self, number: int, slots: int) -> None:
        self.asked_guests += 1
        self.give(LEADER, GrowGuest(GROUP, self.number(number), slots))

    @precondition(lambda self: self.may_ask)
    @rule(number=NUMBERS)
    def close(self, number: int) -> None:
        self.asked_closes += 1
        self.give(LEADER, CloseGuest(GROUP, self.number(number)))

    @precondition(lambda self: self.may_ask)
    @rule(numbers=ROWS, start=st.integers(0, 120), length=st.integers(1, 40))
    def step(self, numbers: list[int], start: int, length: int) -> None:
        """All before the rows lies elsewhere."""
        rows = [(self.number(number), start, min(start + length, TOKENS)) for number in numbers]
        self.ask(rows, [(row, 0, start, 2) for row in range(len(rows))] if start else [])

    @precondition(lambda self: self.may_ask)
    @rule(number=NUMBERS, first=st.integers(0, 100), length=st.integers(1, 40), serves=NUMBERS)
    def serving_step(self, number: int, first: int, length: int, serves: int) -> None:
        """A row, and an answer for what it writes itself, or for what another one wrote before."""
        rows, spans = [(self.number(number), first, first + length)], [(0, 0, first, 2)] if first else []
        stop = first + length
        self.ask(rows, spans, [(self.number(serves), stop, stop + 1, 2, [(first, stop)])])

    @precondition(lambda self: self.may_ask)
    @rule(number=NUMBERS, length=st.integers(3, 60), kept=st.integers(0, 40))
    def ring(self, number: int, length: int, kept: int) -> None:
        stays: dict[str, Any] = {}
        if min(kept, length) > 0:
            stays = {"keep_row": i32([0]), "keep_start": i64([0]), "keep_stop": i64([min(kept, length)])}
        columns = {"kind": GroupKind.RING, "stride": i64([2]), "span_stride": i64([2]), **stays}
        self.ask([(self.number(number), 1, length)], [(0, 0, length, 2)], **columns)

    def ask(self, rows: list[Row], spans: list[Span], parts: list[Part] | None = None, **columns: Any) -> None:
        self.exchange += 1
        self.asked_steps += 1
        self.give(LEADER, group_step(self.exchange, rows, spans, parts, **columns))

    @precondition(lambda self: self.may_ask and self.steps)
    @rule(back=st.integers(0, 3))
    def cancel(self, back: int) -> None:
        self.give(LEADER, CancelGroupSteps(GROUP, self.exchange - back))

    # --- the engine ---

    @precondition(lambda self: self.steps)
    @rule(leave=st.booleans())
    def answer(self, leave: bool) -> None:
        number = next(iter(self.steps))
        step = self.steps.pop(number)
        self.give(ENGINE, answered(number, left=tuple(step.sequence) if leave else ()))

    @precondition(lambda self: self.steps)
    @rule()
    def refuse(self) -> None:
        number = next(iter(self.steps))
        del self.steps[number]
        self.give(ENGINE, Unsupported("Step", "no", step=number))

    # --- ends ---

    @rule(end=st.sampled_from(["engine", "leader", "other group", "other members"]))
    def end(self, end: str) -> None:
        """Each is followed by a new beginning, at once or when the leader or engine is back: see `begin_anew`."""
        if end == "engine" and self.is_up:
            self.give(ENGINE, Gone("died"))
            self.steps.clear()
            self.opened.clear()
            self.is_up = False
        elif end == "leader" and self.has_leader:
            self.asked_guests = self.asked_closes = self.asked_steps = 0
            self.give(LEADER, Gone("died"))
            self.has_leader = False
        elif end.startswith("other"):
            self.version += 2
            if end == "other group":
                self.give(MANAGER, elastic(self.version - 1, THIRD, ME, group=GROUP + 1))
                self.asked_guests = self.asked_closes = self.asked_steps = 0
            self.give(MANAGER, elastic(self.version, LEADER, ME, THIRD))
            self.begin()

    @precondition(lambda self: not self.is_up or not self.has_leader)
    @rule()
    def begin_anew(self) -> None:
        if not self.is_up:
            self.is_up = True
            self.give(ENGINE, make_engine_ready(slots=SLOTS, agent=AGENT))
        self.has_leader = True
        self.begin()

    def begin(self) -> None:
        """The leader asks the member in anew, and opens two guests."""
        self.generation += 1
        if self.has_leader:
            self.give(LEADER, JoinGroup(1, self.version, GROUP, 1))
        if self.has_leader and self.is_up:
            self.give(LEADER, MeetMembers(GROUP, (MemberEngine(2, Address("engine", "third"), b"a2"),)))
            self.open(1, 120, [])
            self.open(2, 120, [])

    # --- what holds ---

    @invariant()
    def no_slot_is_lost(self) -> None:
        core = self.direct.core
        core.lifecycle.kv_cache.check_integrity()
        assert core.steps.outstanding == len(self.steps) <= 1
        report = core.report()
        assert report.owned_slots + report.reserved_slots >= report.guest_slots
        for step in self.steps.values():
            assert not core.slot_table.has_free(zip(step.extent_start, step.extent_length, strict=True))
            read = zip(step.serve.span_start, step.serve.span_stop, step.serve.slot, strict=True) if step.serve else ()
            assert not core.slot_table.has_free([(slot, stop - start) for start, stop, slot in read])

    @invariant()
    def every_question_has_one_answer(self) -> None:
        assert min(self.asked_guests, self.asked_closes, self.asked_steps) >= 0
        if not self.steps:
            assert (self.asked_guests, self.asked_closes, self.asked_steps) == (0, 0, 0)

    def teardown(self) -> None:
        while self.steps:
            self.answer(leave=False)
        if self.has_leader and self.is_up:
            for number in self.opened.copy():
                self.give(LEADER, CloseGuest(GROUP, number))
        assert not self.opened
        assert self.direct.core.slot_table.free == SLOTS, repr(self.direct.core)


TestGuests = GuestMachine.TestCase
TestGuests.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
