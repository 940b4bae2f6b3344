"""A leader's parts, and members that answer as the contract says (`scripted_member.py`), in virtual time.

A step runs once all its members have it first in their queues; where one of them does not compute it, the others wait.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dunlin.effects import Address, After, Effect, Message, Send, sends
from dunlin.messages.dispatch import Refusal, Refused
from dunlin.messages.group import (
    DialPeer,
    GroupStep,
    GroupStepDone,
    GuestClosed,
    GuestRefused,
    GuestsLost,
    GuestSlots,
    MemberReady,
    MembersMet,
)
from dunlin.messages.lifecycle import Missed
from dunlin.messages.plan import AskMembers, GroupOrder, ReturnMembers
from dunlin.messages.types import I32, GroupKind, GroupRole, Why, i32
from services.instance.config import InstanceConfig
from services.instance.group.leading.roster import GroupRoster
from services.instance.group.leading.spread import SpreadSequence
from services.instance.scheduling.step_times import KnownStepTimes
from services.instance.wiring import InstanceParts
from tests.services.instance.bench import MANAGER, ME, Attempt, D, Dispatcher, make_place
from tests.services.instance.group.leading.scripted_member import (
    GROUP,
    ScriptedMember,
    empty_columns,
)
from tests.services.instance.group.leading.step_checks import (
    check_parts,
    check_rings,
    stripes_of,
)
from tests.settings import configured

M = TypeVar("M")
LATENCY_S = 0.001
STEP_S = 0.01
BY_MEMBERS = (MemberReady, MembersMet, GuestSlots, GuestRefused, GuestClosed, GroupStepDone, GuestsLost)


def member_address(index: int) -> Address:
    return ME if index == 0 else Address("instance", f"m{index}", 20 + index)


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
        self.missed: list[Missed] = []
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
        values: dict[str, Any] = {"kind": GroupKind.ELASTIC, "part": GroupRole.LEADER, "group": GROUP, **overrides}
        order = GroupOrder(1, self.version, members=tuple(members), **values)
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
    def spreads(self) -> list[SpreadSequence]:
        led = self.leader._led
        assert led is not None
        return list(led.spreads)

    @property
    def is_quiet(self) -> bool:
        return all(not member.guests and not member.queue for member in self.members.values() if not member.is_silent)

    # --- time ---

    def do(self, effects: list[Effect]) -> None:
        """Carry effects out, with what follows at once."""
        self.parts.sequences.now_s = self.now_s
        effects = [*effects, *self.leader.settle(self.now_s)]
        for effect in [*effects, *self.leader.advance(self.now_s)]:
            if isinstance(effect, After):
                self._post(effect.delay_s, None, ME, effect.message)
            for send in sends([effect]):
                self._route(send)

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
        elif to.role == "client":
            self.missed += [message] if isinstance(message, Missed) else []
        else:
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

    def sleep(self, for_s: float) -> None:
        """This process is stopped for so long: what happens meanwhile is heard afterwards."""
        self.now_s += for_s
        self._events = [(max(at_s, self.now_s), *rest) for at_s, *rest in self._events]
        heapq.heapify(self._events)

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
        found = self._of(exchange)
        return all(each.queue and each.queue[0] is step and not each.is_stopped for each, step in found)

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
