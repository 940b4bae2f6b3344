"""Decides who may write where in the node's host tier, and when room is used again.

Knows handles, generations and writers; not what a region is good for, not a single byte of it, and no other node.
"""

from collections.abc import Sequence
from typing import Any

from dunlin.effects import Address, After, Effect, Gone, Handler, Joined, Message, Send
from dunlin.handlers import handlers_of, handles
from dunlin.messages.declare import declaration_of
from dunlin.messages.exchange import Offer
from dunlin.messages.fleet import KvstoreReport
from dunlin.messages.membership import MemberDown, MembersReset, MemberUp
from dunlin.messages.pool import (
    CommitRegion,
    FindRegions,
    RegionRefused,
    RegionReserved,
    RegionsFound,
    RegionsTaken,
    ReleaseRegion,
    ReserveRegion,
    SendRegions,
    Tier,
    Writing,
)
from dunlin.messages.types import Figure, Priority, Rejected, Why
from dunlin.reporting import Heartbeat
from services.kvstore.catalog import Catalog, Entry, State, may_claim
from services.kvstore.config import KvstoreConfig
from services.kvstore.exchange import Exchange
from services.kvstore.orphans import PROCESSES, AwaitEnd, GraceOver, Orphans, ProcessEnded, Writers
from services.kvstore.room import Room

WRITERS = ("instance", "kvstore")
"""Whose processes may have regions here."""


class KvstoreCore:
    """One node's host tier.

    A region belongs to the stream over which it was committed: a writer that lost its stream has given up what it kept
    here, also when it comes back, and the room is free `orphan_grace_s` later unless an instance claimed it by the
    request's key. What it had reserved it may still write: that room is quarantined until the writer commits or
    releases it, surely ended, or is back and says that it writes there no more. What a kvstore sends is written here:
    `incoming` frees that room.

    `stale_total` counts commits and releases that named an old generation, another's region or none, and whatever came
    from a process that is not joined.
    """

    def __init__(self, address: Address, config: KvstoreConfig) -> None:
        self.address = address
        self._tier = tier = config.tier
        self.catalog = Catalog(Room(tier.capacity_bytes, tier.alignment_bytes, tier.max_regions))
        self.stale_total = 0
        self._tier_path = config.tier_path
        self.orphans = Orphans(config.node)
        self._writers = Writers()
        self._heartbeat = Heartbeat(self.report, config.reports.interval_s)
        self._reserved_total = self._refused_total = 0
        self._corrupt_total = 0
        self._claimed_total = 0
        place = (address, config.node, config.agent)
        self.exchange = Exchange(*place, config.exchange, self.catalog, self._why_not_offered)
        own = handlers_of(self, self._heartbeat)
        own = {kind: self._from_writers(do) if declaration_of(kind) else do for kind, do in own.items()}
        self._handlers = own | self.exchange.handlers

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        """See `dunlin.effects.Core`. What this core has no use for is ignored."""
        handler = self._handlers.get(type(message))
        effects = handler(now_s, sender, message) if handler is not None else []
        for key in self.catalog.take_freed():
            effects += self.exchange.outgoing.released(key)
        return effects

    def report(self) -> KvstoreReport:
        """What this kvstore says of its tier. `used_bytes` counts padding and quarantined room."""
        room = self.catalog.room
        return KvstoreReport(
            capacity_bytes=room.capacity_bytes,
            used_bytes=room.capacity_bytes - room.free_bytes,
            regions=len(self.catalog),
            reserved_total=self._reserved_total,
            refused_total=self._refused_total,
            corrupt_total=self._corrupt_total,
            claimed_total=self._claimed_total,
        )

    def _from_writers(self, do: Handler) -> Handler:
        """What comes over a wire counts only if its sender is joined."""

        def handle(now_s: float, sender: Address, message: Any) -> list[Effect]:
            if sender in self._writers:
                return do(now_s, sender, message)
            self.stale_total += 1
            return []

        return handle

    @handles
    def _on_joined(self, now_s: float, sender: Address, message: Joined) -> list[Effect]:
        if sender.role == "monitor":
            return self._heartbeat.joined(now_s, sender)
        if sender.role not in WRITERS or self._is_outlived(sender):
            self.stale_total += sender.role in WRITERS
            return []
        effects: list[Effect] = []
        for other in self.catalog.incarnations(sender) + self._writers.incarnations(sender):
            if other.incarnation < sender.incarnation:
                effects += self._on_gone(now_s, other, Gone("another incarnation"))
                self._bury(other)
        self._writers.add(sender)
        if sender.role == "kvstore":
            return [*effects, *self.exchange.joined(sender)]
        return [*effects, Send(sender, Tier(self._tier_path, self._tier.capacity_bytes))]

    @handles
    def _on_gone(self, now_s: float, sender: Address, message: Gone) -> list[Effect]:
        self._heartbeat.gone(sender)
        if sender not in self._writers:
            return []
        self._writers.remove(sender)
        effects = (self.exchange.gone if sender.role == "kvstore" else self.exchange.withdraw)(sender)
        if not self.catalog.entries_of(sender):
            self._forget_if_over(sender)
            return effects
        absence = self.orphans.next_absence()
        effects.append(After(self._tier.orphan_grace_s, GraceOver(sender, absence)))
        if self.catalog.orphan(sender, absence):
            effects += self._await_end(sender)
        return effects

    @handles
    def _on_reserve(self, now_s: float, sender: Address, message: ReserveRegion) -> list[Effect]:
        entry = self.catalog.reserve(sender, message) if self._may_reserve(message) else None
        if entry is None:
            self._refused_total += 1
            return [Send(sender, RegionRefused(message.ticket, self._why_refused(message)))]
        self._reserved_total += 1
        return [Send(sender, RegionReserved(message.ticket, entry.host))]

    @handles
    def _on_commit(self, now_s: float, sender: Address, message: CommitRegion) -> list[Effect]:
        taken = self.catalog.commit(sender, message.handle, message.generation, message.checksum)
        self.stale_total += not taken
        entry = self.catalog.find(sender, message.handle, message.generation) if taken else None
        return self.exchange.committed(entry) if entry is not None else []

    @handles
    def _on_release(self, now_s: float, sender: Address, message: ReleaseRegion) -> list[Effect]:
        released = self.catalog.release(sender, message.handle, message.generation)
        self.stale_total += not released
        self._corrupt_total += released and message.corrupt
        return []

    @handles
    def _on_find(self, now_s: float, sender: Address, message: FindRegions) -> list[Effect]:
        if any(may_claim(entry, message) for entry in self.catalog.entries_of_key(message.key)):
            return self._hand_over(sender, message)
        return self.exchange.search(sender, message, lambda: self._hand_over(sender, message))

    def _hand_over(self, asker: Address, message: FindRegions) -> list[Effect]:
        """What can be claimed here."""
        before = {entry.host.handle: entry for entry in self.catalog.entries_of_key(message.key)}
        claimed = self.catalog.claim(asker, message)
        self._claimed_total += len(claimed)
        taken = self._tell_taken([before[entry.host.handle] for entry in claimed])
        return [*taken, Send(asker, RegionsFound(message.ticket, tuple(entry.kept for entry in claimed)))]

    def _tell_taken(self, entries: list[Entry]) -> list[Effect]:
        """Whose they were may run an older attempt still, the asker too: it must not read them by the old names.

        A writer whose stream ended after the commit gave the names up then: it hears nothing, also if it is back.
        """
        taken: dict[Address, RegionsTaken] = {}
        for entry in entries:
            if entry.writer.role == "instance" and not entry.absence:
                names = taken.setdefault(entry.writer, RegionsTaken())
                names.handle.append(entry.host.handle)
                names.generation.append(entry.host.generation)
        return [Send(writer, names) for writer, names in taken.items()]

    @handles
    def _on_writing(self, now_s: float, sender: Address, message: Writing) -> list[Effect]:
        self.catalog.free_quarantined(sender, but=list(zip(message.handle, message.generation, strict=False)))
        return []

    @handles
    def _on_send(self, now_s: float, sender: Address, message: SendRegions) -> list[Effect]:
        return self.exchange.send(now_s, sender, message)

    def _why_not_offered(self, offer: Offer) -> Why | None:
        return None if self._may_reserve(offer.region) else self._why_refused(offer.region)

    def _may_reserve(self, asked: ReserveRegion) -> bool:
        """Checkpoints, which nobody waits for, leave room for what is preempted."""
        if asked.priority is not Priority.CHECKPOINT:
            return True
        room = self.catalog.room
        return room.free_bytes - asked.length_bytes >= self._tier.spill_share * room.capacity_bytes

    @handles
    def _on_grace_over(self, now_s: float, sender: Address, message: GraceOver) -> list[Effect]:
        self.catalog.free_orphans(message.writer, message.absence)
        self._forget_if_over(message.writer)
        return []

    @handles
    def _on_process_ended(self, now_s: float, sender: Address, message: ProcessEnded) -> list[Effect]:
        if message.writer not in self._writers:
            self._bury(message.writer)
        return []

    @handles
    def _on_members_reset(self, now_s: float, sender: Address, message: MembersReset) -> list[Effect]:
        effects: list[Effect] = []
        present = {member.address: None for member in message.members}
        for writer in self.catalog.writers() + self.orphans.known():
            if writer not in present:
                effects += self._deregistered(writer)
        for known in self.exchange.known():
            if known not in present:
                self.exchange.forget(known)
        for member in message.members:
            self.orphans.learn(member)
            self.exchange.learn(member)
        return effects

    @handles
    def _on_member_up(self, now_s: float, sender: Address, message: MemberUp) -> list[Effect]:
        self.orphans.learn(message.member)
        self.exchange.learn(message.member)
        return []

    @handles
    def _on_member_down(self, now_s: float, sender: Address, message: MemberDown) -> list[Effect]:
        self.exchange.forget(message.address)
        return self._deregistered(message.address)

    def _deregistered(self, writer: Address) -> list[Effect]:
        """Its registration ended. A live stream counts for more; committed regions have their own time."""
        self.orphans.lapse(writer)
        if writer in self._writers:
            return []
        if any(entry.state is State.QUARANTINED for entry in self.catalog.entries_of(writer)):
            return self._await_end(writer)
        self._forget_if_over(writer)
        return []

    def _await_end(self, writer: Address) -> list[Effect]:
        """Have the silent writer's process watched; without a process id a lapsed registration must do."""
        pid = self.orphans.pid_of(writer)
        if pid is not None:
            return [Send(PROCESSES, AwaitEnd(writer, pid))]
        if self.orphans.has_lapsed(writer):
            self._bury(writer)
        return []

    def _forget_if_over(self, writer: Address) -> None:
        if writer not in self._writers and self.orphans.has_lapsed(writer) and not self.catalog.entries_of(writer):
            self.orphans.forget(writer)

    def _bury(self, writer: Address) -> None:
        """Its process surely ended: it writes nowhere any more. What it committed waits for its grace."""
        self.orphans.forget(writer)
        if writer.role != "kvstore":  # what it sends, our own side writes
            self.catalog.free_unwritten(writer)

    def _is_outlived(self, writer: Address) -> bool:
        return any(writer.incarnation < other.incarnation for other in self._writers.incarnations(writer))

    def _why_refused(self, asked: ReserveRegion) -> Why:
        room = self.catalog.room
        figures = (
            Figure("asked_bytes", asked.length_bytes),
            Figure("free_bytes", room.free_bytes),
            Figure("largest_free_bytes", room.largest_free_bytes),
            Figure("regions", len(self.catalog)),
            Figure("max_regions", self._tier.max_regions),
        )
        rejected = Rejected("reserve", "no free range is long enough, or no handle is left")
        return Why("best_fit", "refuse", figures, (rejected,))
