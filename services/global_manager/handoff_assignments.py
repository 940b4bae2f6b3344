"""Targets of the prefill instances' hand-offs: the decode instances assigned to each, and their free slots.

Owns the assignments sent in this term. A change of the targets is sent at once, a change of their free slots at most
every `rooms_s`. Knows no sequence: the prefill instances choose when each one migrates, and to which target.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dunlin.effects import Address, Effect, Send
from dunlin.messages.fleet import MemberView
from dunlin.messages.plan import Handoff, HandoffTarget
from dunlin.messages.types import Figure, GroupRole, Why
from dunlin.policies.handoff import assign_targets


@dataclass(frozen=True, slots=True)
class SentAssignment:
    """The newest assignment of one prefill instance, and the time when it was sent."""

    order: Handoff
    at_s: float


class HandoffAssignments:
    """The assignments of one term. `tickets` counts the messages sent."""

    def __init__(self, epoch: int, rooms_s: float) -> None:
        self.tickets = 0
        self._epoch = epoch
        self._rooms_s = rooms_s
        self._sent: dict[Address, SentAssignment] = {}

    @property
    def has_assignments(self) -> bool:
        """Whether any assignment was sent, which may need an update or be forgotten."""
        return bool(self._sent)

    def assign(self, now_s: float, members: Sequence[MemberView]) -> list[Effect]:
        """Send the assignments that changed. `members` have a stream to here."""
        sources = [member for member in members if member.part is GroupRole.PREFILL]
        if not sources and not self._sent:
            return []
        self._keep_only([source.address for source in sources])
        sources.sort(key=lambda member: member.address)
        targets = sorted((one for one in members if _may_receive(one)), key=lambda member: member.address)
        rooms = [
            HandoffTarget(one.address, max(0, one.free_slots - one.waiting_tokens), one.capacity_slots)
            for one in targets
        ]
        effects: list[Effect] = []
        for source, assigned in zip(sources, assign_targets(len(sources), len(targets)), strict=True):
            effects += self._send(now_s, source.address, tuple(rooms[number] for number in assigned), len(targets))
        return effects

    def on_instance_joined(self, instance: Address) -> list[Effect]:
        """A stream opened anew: repeat the assignment, which the old stream may have lost."""
        sent = self._sent.get(instance)
        return [Send(instance, sent.order)] if sent is not None else []

    def _send(self, now_s: float, source: Address, rooms: tuple[HandoffTarget, ...], targets: int) -> list[Effect]:
        sent = self._sent.get(source)
        why = None
        if sent is None or _addresses(sent.order.rooms) != _addresses(rooms):
            names = " or ".join(room.address.name for room in rooms)
            chosen = f"hand off to {names}" if names else "hand nothing off"
            figures = (Figure("decode_instances", targets), Figure("told_of", len(rooms)))
            why = Why("prefill_decode", chosen, figures)
        elif sent.order.rooms == rooms or now_s - sent.at_s < self._rooms_s:
            return []
        self.tickets += 1
        order = Handoff(self._epoch, self.tickets, rooms, why)
        self._sent[source] = SentAssignment(order, now_s)
        return [Send(source, order)]

    def _keep_only(self, sources: Collection[Address]) -> None:
        known = dict.fromkeys(sources)
        for address in [address for address in self._sent if address not in known]:
            del self._sent[address]


def _may_receive(member: MemberView) -> bool:
    return member.part is GroupRole.DECODE and member.ready and not member.suspect and not member.draining


def _addresses(rooms: Sequence[HandoffTarget]) -> list[Address]:
    return [room.address for room in rooms]
