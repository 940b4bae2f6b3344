"""A leader's parts, and members that answer as the contract says, in virtual time: no engine and no real member.

Members are strict: a step that contradicts what they have, or what its other members are told, fails the test. A step
runs once all its members have it first in their queues; where one of them does not compute it, the others wait.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dunlin.effects import Address, After, Effect, Message, Send
from dunlin.messages.dispatch import Refusal, Refused
from dunlin.messages.engine import StepDone
from dunlin.messages.group import (
    CancelGroupSteps,
    CloseGuest,
    DialPeer,
    GroupStep,
    GroupStepDone,
    GrowGuest,
    GuestClosed,
    GuestRefused,
    GuestsLost,
    GuestSlots,
    JoinGroup,
    MeetMembers,
    MemberReady,
    MembersMet,
    OpenGuest,
)
from dunlin.messages.plan import AskMembers, GroupOrder, ReturnMembers
from dunlin.messages.types import I32, FinishReason, GroupKind, GroupRole, Why, f32, i8, i32, i64
from services.instance.config import InstanceConfig
from services.instance.group.leading.roster import GroupRoster
from services.instance.scheduling.step_times import KnownStepTimes
from services.instance.wiring import InstanceParts
from simulator.engine.token_model import digest_of, token_after
from tests.services.instance.bench import MANAGER, ME, Attempt, D, Dispatcher, make_place
from tests.services.instance.group.leading.step_checks import (
    asked_spans,
    check_parts,
    check_rings,
    covered_by,
    kept_of,
    stripes_of,
)
from tests.settings import configured

M = TypeVar("M")
LATENCY_S = 0.001
STEP_S = 0.01
GROUP = 7
BY_MEMBERS = (MemberReady, MembersMet, GuestSlots, GuestRefused, GuestClosed, GroupStepDone, GuestsLost)


def member_address(index: int) -> Address:
    return ME if index == 0 else Address("instance", f"m{index}", 20 + index)


@dataclass
class Guest:
    """A sequence at a member: its text as the engine knows it, and the digest of the text before each KV here."""

    opened: OpenGuest
    slots: int
    text: list[int]
    kv: dict[int, int] = field(default_factory=dict)
    is_over: bool = False


def empty_columns() -> dict[str, list[Any]]:
    """Of an answer, by name."""
    tops = ("top_count", "top_token", "top_logprob")
    return {name: [] for name in ("sequence", "token", "logprob", "finish", "left", "dropped", *tops)}


class ScriptedMember:
    """One member. It refuses `refuses_steps` steps, and rows of the sequences in `leaves` leave their next one."""

    def __init__(self, group: "ScriptedGroup", address: Address, slots: int) -> None:
        self.group = group
        self.address = address
        self.capacity = slots
        self.taken = 0
        self.index = -1
        self.engine = 1
        self.guests: dict[int, Guest] = {}
        self.queue: list[GroupStep] = []
        self.told: dict[int, bytes] = {}
        self.unreachable: set[int] = set()
        self.refuses_steps = 0
        self.leaves: set[int] = set()
        self.is_silent = False
        self.last_exchange = 0
        self.heard: list[Message] = []

    @property
    def free(self) -> int:
        return self.capacity - self.taken - sum(guest.slots for guest in self.guests.values())

    @property
    def agent(self) -> bytes:
        return f"{self.address.name}:{self.engine}".encode()

    def say(self, message: Message) -> None:
        self.group.send(self.address, ME, message)

    def take(self, message: Message) -> None:
        self.heard.append(message)
        if not self.is_silent:
            getattr(self, f"on_{type(message).__name__}")(message)

    def on_JoinGroup(self, message: JoinGroup) -> None:
        self.index = message.member
        self.say_ready()

    def say_ready(self) -> None:
        engine = Address("engine", self.address.name)
        self.say(MemberReady(GROUP, engine, self.agent, 0, self.capacity, self.free, 1000, "w", "fp32"))

    def on_MeetMembers(self, message: MeetMembers) -> None:
        assert self.index not in [each.member for each in message.engines]
        met = [each.member for each in message.engines if each.member not in self.unreachable]
        self.told = {each.member: each.agent for each in message.engines if each.member in met}
        self.say(MembersMet(GROUP, i32(met), "" if len(met) == len(message.engines) else "no way"))

    def on_OpenGuest(self, message: OpenGuest) -> None:
        guest = self.guests.get(message.sequence)
        more = message.slots - (guest.slots if guest is not None else 0)
        assert more >= 0
        if more > self.free:
            self.say(GuestRefused(GROUP, message.sequence, self.free))
            return
        if guest is None:
            assert message.slots > 0
            guest = self.guests[message.sequence] = Guest(message, message.slots, [])
        assert not self.steps_with(message.sequence), "opened anew while steps name it"
        guest.slots, guest.opened, guest.text = message.slots, message, list(message.tokens)
        held = [range(*span) for span in zip(message.held_start, message.held_stop, strict=True)]
        guest.kv = {position: kv for position, kv in guest.kv.items() if any(position in span for span in held)}
        self.say(GuestSlots(GROUP, message.sequence, guest.slots, self.free))

    def on_GrowGuest(self, message: GrowGuest) -> None:
        guest = self.guests.get(message.sequence)
        if guest is None:  # lost before this came
            self.say(GuestRefused(GROUP, message.sequence, self.free))
            return
        assert message.slots > guest.slots
        if message.slots - guest.slots > self.free:
            self.say(GuestRefused(GROUP, message.sequence, self.free))
            return
        guest.slots = message.slots
        self.say(GuestSlots(GROUP, message.sequence, guest.slots, self.free))

    def on_CloseGuest(self, message: CloseGuest) -> None:
        self.guests.pop(message.sequence, None)
        self.say(GuestClosed(GROUP, message.sequence, self.free))

    def on_GroupStep(self, message: GroupStep) -> None:
        assert message.exchange > self.last_exchange
        self.last_exchange = message.exchange
        assert len(message.sequence) + len(message.serve_sequence) > 0
        if self.refuses_steps:
            self.refuses_steps -= 1
            self.say(GroupStepDone(GROUP, message.exchange, None, "not today"))
            return
        self.queue.append(message)
        self.group.start_steps()

    def on_CancelGroupSteps(self, message: CancelGroupSteps) -> None:
        for step in [step for step in self.queue if step.exchange <= message.exchange]:
            self.queue.remove(step)
            self.answer(step, {**empty_columns(), "left": list(step.sequence)})
        self.group.start_steps()

    def steps_with(self, sequence: int) -> list[GroupStep]:
        return [step for step in self.queue if sequence in step.sequence]

    def lose_engine(self) -> None:
        self.guests.clear()
        self.queue.clear()
        self.engine += 1
        self.say(GuestsLost(GROUP))
        self.say_ready()

    def answer(self, step: GroupStep, columns: dict[str, list[Any]]) -> None:
        kinds = {"logprob": f32, "top_logprob": f32, "finish": i8, "token": i32, "top_count": i32, "top_token": i32}
        filled: dict[str, Any] = {name: kinds.get(name, i64)(values) for name, values in columns.items()}
        self.say(GroupStepDone(GROUP, step.exchange, StepDone(step.exchange, **filled)))

    def compute(self, step: GroupStep, row: int, columns: dict[str, list[Any]]) -> None:
        """Write the KV of a row, and choose its token. What the member serves was checked by the masters."""
        number, start, stop = step.sequence[row], step.start[row], step.stop[row]
        guest = self.guests.get(number)
        if guest is None or guest.is_over:
            columns["dropped"].append(number)
            return
        if number in self.leaves or not self.reads_all(step, row, guest, start):
            self.leaves.discard(number)
            columns["left"].append(number)
            return
        assert stop <= len(guest.text), f"{self.address.name} knows {len(guest.text)} tokens, not {stop}"
        for position in [position for position in guest.kv if position >= start]:
            del guest.kv[position]
        for position in range(start, stop):
            guest.kv[position] = digest_of(guest.text[: position + 1])
        assert len(guest.kv) <= guest.slots, f"{len(guest.kv)} tokens in {guest.slots} slots"
        if step.sample[row]:
            assert stop == len(guest.text)
            self.sample(guest, number, columns)

    def may_compute(self, step: GroupStep, row: int) -> bool:
        """Whether a ring's row runs, and reads what lies before the ring."""
        number = step.sequence[row]
        guest = self.guests.get(number)
        if guest is None or guest.is_over or number in self.leaves:
            return False
        return self.reads_all(step, row, guest, covered_by(step, row).start)

    def compute_stripe(self, step: GroupStep, row: int, columns: dict[str, list[Any]], is_whole: bool) -> None:
        """A ring's row: what is kept of all stripes lies here afterwards, if all members computed theirs."""
        number, guest, covered = step.sequence[row], self.guests.get(step.sequence[row]), covered_by(step, row)
        self.leaves.discard(number)
        if guest is None or guest.is_over or not is_whole:
            columns["dropped" if guest is None or guest.is_over else "left"].append(number)
            return
        stripe = range(step.start[row], step.stop[row], step.stride[row])
        assert covered.stop <= len(guest.text)
        guest.kv = {position: kv for position, kv in guest.kv.items() if position < covered.start}
        guest.kv |= {position: digest_of(guest.text[: position + 1]) for position in kept_of(step, row)}
        assert len(guest.kv) + len(stripe) <= guest.slots, f"{len(guest.kv)} and a stripe in {guest.slots} slots"
        if step.sample[row]:
            assert stripe[-1] + 1 == len(guest.text)
            self.sample(guest, number, columns)

    def sample(self, guest: Guest, number: int, columns: dict[str, list[Any]]) -> None:
        opened = guest.opened
        token = token_after(digest_of(guest.text), opened.sampling.seed)
        guest.text.append(token)
        is_last = len(guest.text) >= opened.prompt_tokens + opened.max_tokens
        finish = FinishReason.STOP if token in opened.stop_ids else FinishReason.LENGTH if is_last else 0
        guest.is_over = bool(finish)
        for name, value in (("sequence", number), ("token", token), ("logprob", -1.0), ("finish", int(finish))):
            columns[name].append(value)
        tops = opened.sampling.logprobs or 0
        columns["top_count"].append(tops)
        columns["top_token"] += range(opened.request * 1000, opened.request * 1000 + tops)
        columns["top_logprob"] += [-2.0] * tops

    def reads_all(self, step: GroupStep, row: int, guest: Guest, start: int) -> bool:
        """Whether the KV of all tokens before `start` is there, here or where the row's spans say."""
        number, where = step.sequence[row], {}
        for span_row, first, stop, member in asked_spans(step):
            assert member != self.index
            for position in range(first, stop) if span_row == row else ():
                assert position not in where
                where[position] = member
        for position in range(start):
            holder = self.group.at(where[position]) if position in where else self
            there = holder.guests.get(number)
            if there is None or position not in there.kv:
                return False
            assert there.kv[position] == digest_of(guest.text[: position + 1]), "the KV of another text"
        return True


class ScriptedGroup:
    """The leader's parts, its members, one dispatcher, and a manager that only listens."""

    def __init__(self, *slots: int, start: bool = True, times: KnownStepTimes = None, **config: Any) -> None:
        chosen = {"groups__chunk_tokens": 8, "groups__ahead_tokens": 4, "groups__ring": False, **config}
        self.parts = InstanceParts(ME, configured(InstanceConfig, role="instance", **chosen), times)
        self.leader = self.parts.group_leader
        self.now_s = 0.0
        found = [ScriptedMember(self, member_address(index), each) for index, each in enumerate(slots)]
        self.members = {member.address: member for member in found}
        self.dispatcher = Dispatcher(D)
        self.manager: list[tuple[float, Message]] = []
        self.steps: list[tuple[float, Address, GroupStep]] = []
        self.dials: list[Address] = []
        self.others: dict[Address, list[Message]] = {}
        self.version = 0
        self._events: list[tuple[float, int, Address | None, Address, Any]] = []
        self._count = 0
        self._running: set[int] = set()
        if start:
            self.order(*self.members)
            self.run(0.05)

    # --- the outside ---

    def order(self, *members: Address, **overrides: Any) -> None:
        self.version += 1
        values = {"kind": GroupKind.ELASTIC, "part": GroupRole.LEADER, "group": GROUP, **overrides}
        order = GroupOrder(1, self.version, values["group"], values["kind"], values["part"], tuple(members))
        self.do(self.leader.on_order(MANAGER, order))

    def place(self, request: int = 1, tokens: int = 10, **overrides: Any) -> Attempt:
        place = make_place(request, tokens, **{"group": GROUP, **overrides})
        attempt = self.dispatcher.attempts[request, place.attempt] = Attempt(place)
        self.do([self.leader.admit(self.now_s, D, place)])
        return attempt

    def cancel(self, request: int = 1) -> None:
        sequence = self.parts.sequences.by_key((D, request))
        assert sequence is not None
        sequence.notify_ended = True
        self.do(self.parts.lifecycle.stop(sequence))

    def lose(self, index: int) -> None:
        """The member's process dies."""
        address = member_address(index)
        self.members[address].is_silent = True
        self.members[address].queue.clear()
        self._events = [each for each in self._events if each[2] != address]
        heapq.heapify(self._events)
        self.do(self.leader.on_gone(address))

    def at(self, index: int) -> ScriptedMember:
        return next(member for member in self.members.values() if member.index == index)

    def said(self, kind: type[M]) -> list[M]:
        """What the dispatcher heard."""
        return self.dispatcher.of(kind)

    def wished(self, kind: type[M]) -> list[M]:
        return [message for _, message in self.manager if isinstance(message, kind)]

    def refusal(self, request: int, **place: Any) -> Refusal | None:
        """Why the attempt is refused; None: it is accepted."""
        self.place(request, **place)
        refused = [each for each in self.said(Refused) if each.request == request]
        return refused[0].reason if refused else None

    @staticmethod
    def ids(*tokens: int) -> I32:
        return i32(tokens)

    @property
    def roster(self) -> GroupRoster:
        led = self.leader._led
        assert led is not None
        return led.roster

    @property
    def is_quiet(self) -> bool:
        return all(not member.guests and not member.queue for member in self.members.values() if not member.is_silent)

    # --- time ---

    def do(self, effects: list[Effect]) -> None:
        """Carry effects out, with what follows at once."""
        self.parts.sequences.now_s = self.now_s
        for effect in [*effects, *self.leader.advance(self.now_s)]:
            if isinstance(effect, After):
                self._post(effect.delay_s, None, ME, effect.message)
            else:
                self._route(effect)

    def _route(self, effect: Send) -> None:
        to, message = effect.to, effect.message
        if isinstance(message, GroupStep):
            assert len({each.exchange for _, _, each in self.steps if each.exchange >= message.exchange}) <= 1
            self.steps.append((self.now_s, to, message))
        if isinstance(message, DialPeer):
            self.dials.append(message.peer)
            if not self.members[message.peer].is_silent:
                self.do(self.leader.on_joined(message.peer))
        elif to in self.members:
            self._post(0.0 if to == ME else LATENCY_S, ME, to, message)
        elif to == D:
            self.dispatcher.receive(self.now_s, ME, message)
        elif to.role == "dispatcher":
            self.others.setdefault(to, []).append(message)
        elif to.role != "client":
            assert to == MANAGER, f"{message} to {to}"
            assert isinstance(message, AskMembers | ReturnMembers)
            self.manager.append((self.now_s, message))

    def send(self, sender: Address, to: Address, message: Message) -> None:
        """From a member."""
        self._post(0.0 if sender == ME else LATENCY_S, sender, to, message)

    def _post(self, delay_s: float, sender: Address | None, to: Address, message: Message) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._count, sender, to, message))

    def run(self, for_s: float) -> None:
        """Everything that happens within the time."""
        until_s = self.now_s + for_s
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, sender, to, message = heapq.heappop(self._events)
            if isinstance(message, ExchangeDue):
                self._finish(message.exchange)
            elif sender is None:
                self.do(self.leader.on_timer(self.now_s, ME, message))
            elif isinstance(message, BY_MEMBERS):
                self.do(self.leader.on_said(self.now_s, sender, message))
            else:
                self.members[to].take(message)
        self.now_s = until_s

    # --- the steps ---

    def start_steps(self) -> None:
        """Begin the steps that all their members have first in their queues."""
        for member in self.members.values():
            first = member.queue[0].exchange if member.queue else 0
            if first and first not in self._running and self._is_ready(first):
                self._running.add(first)
                self._post(STEP_S, None, ME, ExchangeDue(first))

    def _of(self, exchange: int) -> list[tuple[ScriptedMember, GroupStep]]:
        return [(self.members[to], step) for _, to, step in self.steps if step.exchange == exchange]

    def _is_ready(self, exchange: int) -> bool:
        return all(member.queue and member.queue[0] is step for member, step in self._of(exchange))

    def _finish(self, exchange: int) -> None:
        """All members compute it, unless one has left it meanwhile."""
        self._running.discard(exchange)
        if not self._is_ready(exchange):
            return
        found = self._of(exchange)
        columns = {member.index: empty_columns() for member, _ in found}
        rows = [(step.start[row], member, step, row) for member, step in found for row in range(len(step.sequence))]
        check_parts({member.index: step for member, step in found})
        rings = [each for each in rows if stripes_of(each[2], each[3])]
        check_rings([(step, row) for _, _, step, row in rings])
        is_whole: dict[int, bool] = {}
        for _, member, step, row in rings:
            number = step.sequence[row]
            is_whole[number] = is_whole.get(number, True) and member.may_compute(step, row)
        for _, member, step, row in rings:
            member.compute_stripe(step, row, columns[member.index], is_whole[step.sequence[row]])
        for _, member, step, row in sorted([each for each in rows if each not in rings], key=lambda each: each[0]):
            member.compute(step, row, columns[member.index])
        for member, step in found:
            member.queue.pop(0)
            member.answer(step, columns[member.index])
        self.start_steps()


@dataclass(frozen=True)
class ExchangeDue:
    """The step of the group ends."""

    exchange: int


def rows_of(step: GroupStep) -> list[tuple[int, int, int]]:
    """(n of the sequence in its group, start, stop) of each row."""
    return [(a & 0xFFFF, b, c) for a, b, c in zip(step.sequence, step.start, step.stop, strict=True)]


def exchanges(group: ScriptedGroup) -> list[dict[int, list[tuple[int, int, int]]]]:
    """The rows by member of each exchange."""
    found: dict[int, dict[int, list[tuple[int, int, int]]]] = {}
    for _, to, step in group.steps:
        found.setdefault(step.exchange, {})[group.members[to].index] = rows_of(step)
    return list(found.values())


def heard(group: ScriptedGroup, index: int, kind: type[Any]) -> list[Any]:
    return [message for message in group.at(index).heard if isinstance(message, kind)]


def figures(why: Why | None) -> Mapping[str, float]:
    assert why is not None
    return {figure.name: figure.value for figure in why.figures}
