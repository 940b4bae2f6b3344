"""An instance as a member of an elastic group: whose leader's commands it follows, and what that one must know of it.

The manager's order is the lease: commands of its group's leader are carried out, all others are stale. Knows no slot.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Suspected
from dunlin.messages.engine import EngineReady, StepDone, Unsupported
from dunlin.messages.group import (
    CancelGroupSteps,
    CloseGuest,
    GroupStep,
    GrowGuest,
    GuestReassigned,
    GuestsLost,
    JoinGroup,
    MeetMembers,
    MemberReady,
    MembersMet,
    OpenGuest,
)
from dunlin.messages.plan import GroupOrder
from dunlin.messages.types import I64, Figure, GroupKind, RejectedOption, Why, i32, i64
from services.instance.engine.met_engines import MetEngines, PeerState
from services.instance.group.guest_steps import GuestSteps
from services.instance.group.member_step import MemberPlace
from services.instance.kv.whole_regions import all_layers
from services.instance.scheduling.group_orders import GroupOrders

SAID_PARTS = 8
"""`MemberReady` is said anew when the available slots have changed by one in so many of the capacity."""

Lease = tuple[int, Address]
"""A group and its leader."""


class GroupMember:
    """Owns what the leader knows of this member. `stale_total` counts messages of other groups and other leaders.

    `ready()`: the engine, while it holds all layers and no change of them is under way; None otherwise.
    """

    def __init__(
        self,
        engine: Address,
        orders: GroupOrders,
        met_engines: MetEngines,
        steps: GuestSteps,
        ready: Callable[[], EngineReady | None],
    ) -> None:
        self.stale_total = 0
        self._engine = engine
        self._orders = orders
        self._met_engines = met_engines
        self._steps = steps
        self._ready = ready
        self._order: GroupOrder | None = None
        self._lease: Lease | None = None
        self._joined: JoinGroup | None = None
        # A leader whose order has not come yet, and what it asked.
        self._awaiting: tuple[Address, JoinGroup] | None = None
        self._said: MemberReady | None = None
        self._meetings: deque[MeetMembers] = deque()
        self._agents: dict[int, tuple[Address, bytes]] = {}

    def __repr__(self) -> str:
        return f"[lease: {self._lease} | said: {self._said is not None} | {self._steps!r}]"

    @property
    def steps(self) -> GuestSteps:
        """The guests here and the group's steps."""
        return self._steps

    def report_fields(self) -> dict[str, Any]:
        """The fields of a report that tell of guests."""
        return {"guest_slots": self._steps.guests.slots_in_all}

    @property
    def has_leader(self) -> bool:
        """Whether the order that is followed has it compute steps for a leader."""
        return self._lease is not None

    def advance(self, now_s: float) -> list[Effect]:
        """After every change: tell the leader what changed here, and go on with what it asked for."""
        if self._lease is None or self._joined is None:
            return []
        ready = self._ready()
        if ready is None:
            return self._lose("no engine with all layers, or they are about to change")
        effects = self._steps.advance(now_s) if self._said is not None else []
        effects += self._say_ready(ready, self._lease[1], self._joined)
        return effects + (self._answer_meetings() if self._meetings else [])

    # --- the leader that it follows ---

    @handles
    def on_join(self, now_s: float, sender: Address, asked: JoinGroup) -> list[Effect]:
        """A leader asks what this member brings: said once its order is followed here, and whenever it changes. Where
        it is followed by an older order, one that ends this may come before the one that the leader has.
        """
        is_early = _version(asked) > self._orders.version
        if is_early and (self._awaiting is None or _version(self._awaiting[1]) <= _version(asked)):
            self._awaiting = sender, asked
        if self._lease == (asked.group, sender):
            self._joined, self._said = asked, None
        elif not is_early:
            self.stale_total += 1
        return []

    def on_order(self, order: GroupOrder) -> list[Effect]:
        """A newer order is followed."""
        before, self._order, lease, awaiting = self._order, order, _lease(order), self._awaiting
        if awaiting is not None and _version(awaiting[1]) <= self._orders.version:
            self._awaiting = None
        if lease is not None and lease == self._lease:
            assert before is not None
            self._place_steps()
            removed = {each.name for each in set(before.members) - set(order.members)}
            return self._steps.end_with(removed) if removed else []
        effects = self._lose("it follows another order", keeps_guests=True)
        self._lease, self._joined = lease, None
        if awaiting is not None and lease == (awaiting[1].group, awaiting[0]):
            self._joined = awaiting[1]
        return effects

    def on_gone(self, peer: Address) -> list[Effect]:
        """A stream ended: a leader whose stream it was has no guests here any more."""
        if self._awaiting is not None and self._awaiting[0] == peer:
            self._awaiting = None
        if self._lease is None or self._lease[1] != peer:
            return []
        self._joined = self._said = None
        return self._drop(keeps_guests=True)

    def on_engine_lost(self, may_blame: bool) -> list[Effect]:
        """The engine is lost, and all guests with it; `may_blame`: a request of its step may have crashed it."""
        exchange, suspects = self._steps.suspects() if may_blame else (0, i64())
        dropped = self._steps.dropped_suspects() if may_blame else []
        self._steps.on_engine_lost()
        return [*_suspect(dropped), *self._lose("its engine is gone", exchange, suspects)]

    def _lose(
        self, reason: str, exchange: int = 0, suspects: I64 | None = None, keeps_guests: bool = False
    ) -> list[Effect]:
        """Nothing of the guests is here any more for the leader, which is told if it relies on this member."""
        if self._lease is None or self._said is None:
            return []
        (group, leader), self._said = self._lease, None
        unmet = [Send(leader, MembersMet(group, detail=reason, question=each.question)) for each in self._meetings]
        why = Why("group", "lose the guests", (), (RejectedOption("keep them", reason),))
        return [*self._drop(keeps_guests), *unmet, Send(leader, GuestsLost(group, why, exchange, suspects or i64()))]

    def _drop(self, keeps_guests: bool) -> list[Effect]:
        self._meetings.clear()
        self._agents.clear()
        return self._steps.drop_all(keeps_guests)

    # --- what the leader must know ---

    def _say_ready(self, ready: EngineReady, leader: Address, joined: JoinGroup) -> list[Effect]:
        guests = self._steps.guests
        if self._is_said(ready):
            return []
        self._said = MemberReady(
            joined.group,
            self._engine,
            self._met_engines.agent,
            ready.layout,
            guests.capacity,
            guests.available_slots,
            ready.max_positions,
            ready.weights_digest,
            ready.kv_dtype,
            ready.adapters,
        )
        self._steps.on_place(leader, self._place(ready, joined), ready)
        return [Send(leader, self._said)]

    def _is_said(self, ready: EngineReady) -> bool:
        """Whether nothing that one engine may change has, but a few of the available slots."""
        said, guests = self._said, self._steps.guests
        if said is None:
            return False
        capacity, changed = guests.capacity, abs(guests.available_slots - said.available_slots)
        is_same = (said.agent, said.layout, said.capacity_slots) == (self._met_engines.agent, ready.layout, capacity)
        return is_same and changed * SAID_PARTS < max(capacity, 1)

    @handles
    def on_meet_members(self, now_s: float, sender: Address, asked: MeetMembers) -> list[Effect]:
        """Meet the engines of the others that are not met as they are now; the leader asks again where some are not."""
        if not self._is_current(sender, asked.group):
            return []
        assert self._joined is not None
        self._agents = {each.member: (each.engine, each.agent) for each in asked.engines}
        self._agents.pop(self._joined.member, None)
        self._meetings.append(asked)
        effects: list[Effect] = []
        for engine, agent in self._agents.values():
            effects += self._met_engines.meet_again(engine, agent)
        if effects:  # a meeting may take a transfer helper long, an engine answers a probe at once
            effects.append(self._steps.probe())
        self._place_steps()
        return effects

    def _place_steps(self) -> None:
        """What is known of the other members has changed."""
        ready = self._ready()
        if ready is not None and self._said is not None and self._lease is not None and self._joined is not None:
            self._steps.on_place(self._lease[1], self._place(ready, self._joined), ready)

    def _place(self, ready: EngineReady, joined: JoinGroup) -> MemberPlace:
        """Steps that name members that the order does not are refused: their leader has not heard of it yet."""
        names = {each.name for each in self._order.members} if self._order is not None else set[str]()
        engines = {member: engine for member, (engine, _) in self._agents.items() if engine.name in names}
        return MemberPlace(joined.member, engines, len(all_layers(ready)), ready.layout)

    def _answer_meetings(self) -> list[Effect]:
        """Answer, in their order, those of which nothing is awaited any more."""
        effects: list[Effect] = []
        while self._meetings:
            others = [each for each in self._meetings[0].engines if each.engine != self._engine]
            states = {each.member: self._met_engines.state(each.engine, each.agent) for each in others}
            if PeerState.ASKED in states.values():
                break
            met = i32(member for member, state in states.items() if state is PeerState.MET)
            missing = sorted(set(states) - set(met))
            detail = f"members {missing} cannot be reached" if missing else ""
            assert self._lease is not None
            asked = self._meetings.popleft()
            effects.append(Send(self._lease[1], MembersMet(asked.group, met, detail, asked.question)))
        return effects

    # --- what the leader asks for ---

    def _is_current(self, sender: Address, group: int) -> bool:
        """Whether it is the leader's that this member follows, and relies on it; counts it as stale if not."""
        if self._said is not None and self._lease == (group, sender):
            return True
        self.stale_total += 1
        return False

    @handles
    def on_command(
        self, now_s: float, sender: Address, command: OpenGuest | GrowGuest | CloseGuest | GroupStep
    ) -> list[Effect]:
        """A guest is to be opened, grown or closed, or a step computed."""
        return self._steps.add(command) if self._is_current(sender, command.group) else []

    @handles
    def on_cancel(self, now_s: float, sender: Address, asked: CancelGroupSteps) -> list[Effect]:
        """Steps are to end."""
        return self._steps.cancel(asked.exchange) if self._is_current(sender, asked.group) else []

    @handles
    def on_reassigned(self, now_s: float, sender: Address, told: GuestReassigned) -> list[Effect]:
        """Another dispatcher has the request of a guest."""
        if self._is_current(sender, told.group):
            self._steps.reassign(told)
        return []

    # --- the engine's answers ---

    def on_step_answer(self, answer: StepDone | Unsupported) -> list[Effect]:
        """The engine's answer to a group's step."""
        return self._steps.on_done(answer) if isinstance(answer, StepDone) else self._steps.on_refused(answer.detail)


def _suspect(dropped: list[OpenGuest]) -> list[Effect]:
    """Tell the dispatchers of these guests what no leader waits for any more."""
    rejected = RejectedOption("tell its leader", "it wants no answer of this step any more")
    why = Why("poison", "it may have crashed the engine", (Figure("sequences", len(dropped)),), (rejected,))
    is_alone = len(dropped) == 1
    return [Send(each.dispatcher, Suspected(each.request, each.attempt, is_alone, why)) for each in dropped]


def _version(asked: JoinGroup) -> tuple[int, int]:
    return asked.epoch, asked.plan_version


def _lease(order: GroupOrder) -> Lease | None:
    return (order.group, order.members[0]) if order.kind is GroupKind.ELASTIC else None
