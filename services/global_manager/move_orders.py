"""What moves between instances while this process leads: drains that an operator wants, and the policy's rebalancing.

Owns the moves that were ordered and not answered, and the drains that were ordered and not yet seen in a view. Whether
an instance drains is taken from its own report, so that a new leader continues where the last one stopped. Knows no
sequence: the source chooses those.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dunlin.effects import Address, Effect, Send
from dunlin.messages.fleet import MemberView
from dunlin.messages.plan import (
    Drain,
    DrainDone,
    DrainOutcome,
    DrainReply,
    DrainRequest,
    Evacuate,
    EvacuateDone,
    Undrain,
)
from dunlin.messages.types import Figure, GroupRole, Why
from dunlin.policies.rebalance import RebalanceCandidate, RebalanceMove, RebalancePolicy, least_loaded
from services.global_manager.config import RebalanceConfig

OPERATOR = "operator"
MAX_VAIN_RESTS = 32
"""A source that moved nothing gives nothing for the policy's sake for twice as long each time, up to so many rests."""


@dataclass(slots=True)
class DrainOrder:
    """A drain, or its end, that an operator asked for; `order` is given again until the instance reports it."""

    order: Drain | Undrain

    @property
    def draining(self) -> bool:
        """Whether the instance should report that it drains."""
        return isinstance(self.order, Drain)


@dataclass(slots=True)
class VainOrders:
    """A source moved nothing in its last orders: until then another of the policy's would be in vain, too."""

    rests: int = 0
    until_s: float = 0.0


class MoveOrders:
    """One term's moves. `tickets` were given out; `moved_total` and `stayed_total` count sequences."""

    def __init__(self, epoch: int, policy: RebalancePolicy, config: RebalanceConfig) -> None:
        self.moved_total = 0
        self.stayed_total = 0
        self._epoch = epoch
        self._policy = policy
        self._config = config
        self.tickets = 0
        self._open: dict[Address, Evacuate] = {}
        self._drains: dict[Address, DrainOrder] = {}
        self._cooldown_until_s: dict[Address, float] = {}
        self._vain: dict[Address, VainOrders] = {}

    def request_drain(self, request: DrainRequest, members: Sequence[MemberView]) -> tuple[DrainReply, list[Effect]]:
        """An operator's wish: the answer, and what follows. `members` have a stream to here."""
        found = [member for member in members if member.address.name == request.instance]
        if not found:
            names = ", ".join(sorted(member.address.name for member in members)) or "none"
            return DrainReply(DrainOutcome.UNKNOWN_INSTANCE, f"the instances are: {names}"), []
        member = max(found, key=lambda one: one.address.incarnation)
        others = tuple(one.address for one in members if one.address != member.address and self._may_receive(one))
        if self._is_to_drain(member) is not request.undo:
            detail = "it drains already" if not request.undo else "it takes requests already"
            return DrainReply(DrainOutcome.ALREADY, detail, member.address, others), []
        if not others and not request.undo:
            detail = "no other instance is ready to take what it holds"
            return DrainReply(DrainOutcome.NOWHERE_TO_GO, detail, member.address), []
        self.tickets += 1
        figures = (Figure("running", member.running), Figure("waiting", member.waiting), Figure("others", len(others)))
        kind, verb = (Undrain, "take requests again") if request.undo else (Drain, "drain")
        order = kind(self._epoch, self.tickets, Why(OPERATOR, f"{verb}: {member.address.name}", figures))
        self._drains[member.address] = DrainOrder(order)
        self._cooldown_until_s.pop(member.address, None)
        return DrainReply(DrainOutcome.ORDERED, "", member.address, others), [Send(member.address, order)]

    def order_moves(self, now_s: float, members: Sequence[MemberView]) -> list[Effect]:
        """The orders due now: first for draining instances, then of the policy. `members` have a stream to here."""
        self._drop_confirmed_drains(members)
        effects: list[Effect] = []
        for index, member in enumerate(members):
            if self._is_to_drain(member) and member.running + member.waiting > 0 and self._may_give(now_s, member):
                slots = member.capacity_slots - member.free_slots + member.waiting_tokens
                candidates = self._drain_candidates(now_s, members)
                move = least_loaded(candidates, index, slots, OPERATOR)
                effects += self._order_evacuation(members, move) if move is not None else []
        most = self._config.max_migrations - len(self._open)
        if most > 0:
            candidates = self._candidates(now_s, members, busy_takers=False)
            for move in self._policy(candidates, most, self._config.min_load_gap):
                effects += self._order_evacuation(members, move)
        return effects

    def resend_drains(self) -> list[Send]:
        """Orders whose effect no view shows yet."""
        return [Send(instance, wish.order) for instance, wish in self._drains.items()]

    def on_instance_joined(self, instance: Address) -> list[Effect]:
        """A stream opened anew: repeat the open orders, which may have been lost; instances recognize repeats. In the
        order of their tickets, for an instance refuses what is older than the last that it heard.
        """
        evacuation, wish = self._open.get(instance), self._drains.get(instance)
        orders = [*([evacuation] if evacuation is not None else []), *([wish.order] if wish is not None else [])]
        return [Send(instance, order) for order in sorted(orders, key=lambda order: order.ticket)]

    def forget_unknown(self, known: Collection[Address]) -> None:
        """Forget instances that the view does not have: they are gone for good."""
        tables: tuple[dict[Address, Any], ...] = (self._open, self._drains, self._cooldown_until_s, self._vain)
        for table in tables:
            for address in [address for address in table if address not in known]:
                table.pop(address)

    def on_evacuate_done(self, now_s: float, sender: Address, message: EvacuateDone) -> bool:
        """A source has completed its evacuation; False if that order is not open."""
        evacuation = self._open.get(sender)
        if evacuation is None or (evacuation.epoch, evacuation.ticket) != (message.epoch, message.ticket):
            return False
        del self._open[sender]
        self.moved_total += message.moved
        self.stayed_total += message.stayed
        for address in (sender, evacuation.target):
            self._cooldown_until_s[address] = now_s + self._config.rest_s
        self._note_vain(now_s, sender, message.moved)
        return True

    def on_drain_done(self, sender: Address, message: DrainDone) -> bool:
        """The instance got the drain order; a view confirms its effect. False if that order is not open."""
        wish = self._drains.get(sender)
        return wish is not None and (wish.order.epoch, wish.order.ticket) == (message.epoch, message.ticket)

    def _note_vain(self, now_s: float, source: Address, moved: int) -> None:
        """What is too large to move, or has nowhere to go, stays so for a while: a policy sees loads, not sequences."""
        if moved:
            self._vain.pop(source, None)
            return
        vain = self._vain.setdefault(source, VainOrders())
        vain.rests = min(2 * vain.rests, MAX_VAIN_RESTS) or 1
        vain.until_s = now_s + vain.rests * self._config.rest_s

    @property
    def has_open_drains(self) -> bool:
        """Whether a wish is not in the views yet."""
        return bool(self._drains)

    def _drop_confirmed_drains(self, members: Sequence[MemberView]) -> None:
        for member in members:
            wish = self._drains.get(member.address)
            if wish is not None and wish.draining == member.draining:
                del self._drains[member.address]

    def _order_evacuation(self, members: Sequence[MemberView], move: RebalanceMove) -> list[Effect]:
        source, target = members[move.source].address, members[move.target].address
        self.tickets += 1
        evacuation = Evacuate(self._epoch, self.tickets, target, move.slots, move.why, move.most_slots)
        self._open[source] = evacuation
        return [Send(source, evacuation)]

    def _is_to_drain(self, member: MemberView) -> bool:
        wish = self._drains.get(member.address)
        return wish.draining if wish is not None else member.draining

    def _may_receive(self, member: MemberView) -> bool:
        serves = member.ready and not member.suspect and member.plan_version > 0
        return serves and not self._is_to_drain(member)

    def _may_give(self, now_s: float, member: MemberView) -> bool:
        serves = member.ready and not member.suspect and member.leaving == 0
        rests = self._cooldown_until_s.get(member.address, now_s) > now_s
        return serves and member.address not in self._open and not rests

    def _is_vain(self, now_s: float, source: Address) -> bool:
        vain = self._vain.get(source)
        return vain is not None and vain.until_s > now_s

    def _drain_candidates(self, now_s: float, members: Sequence[MemberView]) -> list[RebalanceCandidate]:
        """The possible targets: in a split fleet only instances that decode, if there are any."""
        candidates = self._candidates(now_s, members, busy_takers=True)
        pairs = list(zip(candidates, members, strict=True))
        decodes = [one.may_receive and member.part is not GroupRole.PREFILL for one, member in pairs]
        if not any(decodes):
            return candidates
        return [replace(one, may_receive=takes) for one, takes in zip(candidates, decodes, strict=True)]

    def _candidates(self, now_s: float, members: Sequence[MemberView], busy_takers: bool) -> list[RebalanceCandidate]:
        targets = {evacuation.target for evacuation in self._open.values()}
        return [
            RebalanceCandidate(
                member.address.name,
                member.capacity_slots,
                member.free_slots,
                member.waiting_tokens,
                member.head_waiting_tokens,
                member.running,
                may_give=self._may_give(now_s, member)
                and not self._is_to_drain(member)
                and not self._is_vain(now_s, member.address),
                may_receive=self._may_receive(member)
                and (busy_takers or (member.address not in targets and self._may_give(now_s, member))),
            )
            for member in members
        ]
