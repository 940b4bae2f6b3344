"""Decides which process may write where in the node's host tier, and when room is used again.

Knows handles, generations and writers; not what a region is good for, not a single byte of it, and no other node.
"""

from collections.abc import Sequence
from typing import Any

from dunlin.cores.handlers import handlers_of, handles
from dunlin.cores.reporting import Heartbeat
from dunlin.effects import Address, After, Effect, Gone, Handler, Joined, Message, Send
from dunlin.messages.declare import declaration_of
from dunlin.messages.exchange import Offer
from dunlin.messages.fleet import KvstoreReport
from dunlin.messages.membership import MemberDown, MembersReset, MemberUp
from dunlin.messages.pool import (
    CommitRegion,
    FindRegions,
    PendingWrites,
    RegionRefused,
    RegionReserved,
    RegionsFound,
    RegionsRevoked,
    ReleaseRegion,
    ReserveRegion,
    SendRegions,
    TierReady,
)
from dunlin.messages.types import Figure, Priority, RejectedOption, Why
from services.kvstore.config import KvstoreConfig
from services.kvstore.regions.allocator import RangeAllocator
from services.kvstore.regions.catalog import RegionCatalog, RegionEntry, RegionState, may_claim
from services.kvstore.regions.writer_absences import (
    PROCESSES,
    AwaitProcessEnd,
    ConnectedWriters,
    ProcessEnded,
    WriterAbsences,
    WriterGraceOver,
)
from services.kvstore.transfer.exchange import RegionExchange

WRITERS = ("instance", "kvstore")
"""Roles whose processes may have regions here."""


class KvstoreCore:
    """One node's host tier.

    A region belongs to the stream over which it was committed: a writer that lost its stream has given up what it kept
    here, also when it comes back, and the room is free `orphan_grace_s` later unless an instance claimed it by the
    request's key. What it had reserved it may still write: that room is quarantined until the writer commits or
    releases it, surely ended, or is back and says that it writes there no more. Regions of another
    kvstore are written by this process: `IncomingCopies` frees their room.

    `stale_total` counts commits and releases that named an old generation, another's region or none, and whatever came
    from a process that is not joined.
    """

    def __init__(self, address: Address, config: KvstoreConfig) -> None:
        self.address = address
        self._tier = tier = config.tier
        self.catalog = RegionCatalog(RangeAllocator(tier.capacity_bytes, tier.alignment_bytes, tier.max_regions))
        self.stale_total = 0
        self._tier_path = config.tier_path
        self.absences = WriterAbsences(config.node)
        self._writers = ConnectedWriters()
        self._heartbeat = Heartbeat(self.report, config.reports.interval_s)
        self._reserved_total = self._refused_total = 0
        self._corrupt_total = 0
        self._claimed_total = 0
        place = (address, config.node, config.agent)
        self.exchange = RegionExchange(*place, config.exchange, self.catalog, self._why_not_offered)
        own = handlers_of(self, self._heartbeat)
        own = {kind: self._from_writers(do) if declaration_of(kind) else do for kind, do in own.items()}
        self._handlers = own | self.exchange.handlers

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        """See `dunlin.effects.Core`. What this core has no use for is ignored."""
        handler = self._handlers.get(type(message))
        effects = handler(now_s, sender, message) if handler is not None else []
        for key in self.catalog.pop_freed_keys():
            effects += self.exchange.outgoing.on_region_released(key)
        return effects

    def report(self) -> KvstoreReport:
        """The report of this kvstore. `used_bytes` counts padding and quarantined room."""
        room = self.catalog.allocator
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
        """Handle a message of another process, if its sender is joined."""

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
                self._process_ended(other)
        self._writers.add(sender)
        if sender.role == "kvstore":
            return [*effects, *self.exchange.on_peer_joined(sender)]
        return [*effects, Send(sender, TierReady(self._tier_path, self._tier.capacity_bytes))]

    @handles
    def _on_gone(self, now_s: float, sender: Address, message: Gone) -> list[Effect]:
        self._heartbeat.gone(sender)
        if sender not in self._writers:
            return []
        self._writers.remove(sender)
        effects = (self.exchange.on_peer_gone if sender.role == "kvstore" else self.exchange.cancel_for)(sender)
        if not self.catalog.entries_of(sender):
            self._forget_if_over(sender)
            return effects
        absence = self.absences.next_absence()
        effects.append(After(self._tier.orphan_grace_s, WriterGraceOver(sender, absence)))
        if self.catalog.orphan_writer(sender, absence):
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
        return self.exchange.replicate(entry) if entry is not None else []

    @handles
    def _on_release(self, now_s: float, sender: Address, message: ReleaseRegion) -> list[Effect]:
        released = self.catalog.release(sender, message.handle, message.generation)
        self.stale_total += not released
        self._corrupt_total += released and message.corrupt
        return []

    @handles
    def _on_find(self, now_s: float, sender: Address, message: FindRegions) -> list[Effect]:
        if any(may_claim(entry, message) for entry in self.catalog.entries_of_key(message.key)):
            return self._claim(sender, message)
        return self.exchange.search_peers(sender, message, lambda: self._claim(sender, message))

    def _claim(self, asker: Address, message: FindRegions) -> list[Effect]:
        """What can be claimed here."""
        before = {entry.host.handle: entry for entry in self.catalog.entries_of_key(message.key)}
        claimed = self.catalog.claim(asker, message)
        self._claimed_total += len(claimed)
        taken = self._revoke([before[entry.host.handle] for entry in claimed])
        return [*taken, Send(asker, RegionsFound(message.ticket, tuple(entry.kept_region for entry in claimed)))]

    def _revoke(self, entries: list[RegionEntry]) -> list[Effect]:
        """Tell the former writers, which may still run an older attempt and must not read the regions by the old names.

        A writer whose stream ended after the commit lost the names then: it gets no message, even if it is back.
        """
        taken: dict[Address, RegionsRevoked] = {}
        for entry in entries:
            if entry.writer.role == "instance" and not entry.absence:
                names = taken.setdefault(entry.writer, RegionsRevoked())
                names.handle.append(entry.host.handle)
                names.generation.append(entry.host.generation)
        return [Send(writer, names) for writer, names in taken.items()]

    @handles
    def _on_writing(self, now_s: float, sender: Address, message: PendingWrites) -> list[Effect]:
        self.catalog.free_quarantined(sender, but=list(zip(message.handle, message.generation, strict=False)))
        return []

    @handles
    def _on_send(self, now_s: float, sender: Address, message: SendRegions) -> list[Effect]:
        return self.exchange.send_regions(now_s, sender, message)

    def _why_not_offered(self, offer: Offer) -> Why | None:
        return None if self._may_reserve(offer.region) else self._why_refused(offer.region)

    def _may_reserve(self, asked: ReserveRegion) -> bool:
        """Refuse checkpoints, on which no sequence waits, where preempted sequences may need the room."""
        if asked.priority is not Priority.CHECKPOINT:
            return True
        room = self.catalog.allocator
        return room.free_bytes - asked.length_bytes >= self._tier.spill_share * room.capacity_bytes

    @handles
    def _on_grace_over(self, now_s: float, sender: Address, message: WriterGraceOver) -> list[Effect]:
        self.catalog.free_orphans(message.writer, message.absence)
        self._forget_if_over(message.writer)
        return []

    @handles
    def _on_process_ended(self, now_s: float, sender: Address, message: ProcessEnded) -> list[Effect]:
        if message.writer not in self._writers:
            self._process_ended(message.writer)
        return []

    @handles
    def _on_members_reset(self, now_s: float, sender: Address, message: MembersReset) -> list[Effect]:
        effects: list[Effect] = []
        present = {member.address: None for member in message.members}
        for writer in self.catalog.known_writers() + self.absences.with_process_id():
            if writer not in present:
                effects += self._registration_ended(writer)
        for known in self.exchange.registered_peers():
            self.exchange.remove_peer(known)
        for member in message.members:
            self.absences.record_member(member)
            self.exchange.add_peer(member)
        return effects

    @handles
    def _on_member_up(self, now_s: float, sender: Address, message: MemberUp) -> list[Effect]:
        self.absences.record_member(message.member)
        self.exchange.add_peer(message.member)
        return []

    @handles
    def _on_member_down(self, now_s: float, sender: Address, message: MemberDown) -> list[Effect]:
        self.exchange.remove_peer(message.address)
        return self._registration_ended(message.address)

    def _registration_ended(self, writer: Address) -> list[Effect]:
        """Its registration ended. A live stream counts for more; committed regions have their own time."""
        self.absences.registration_ended(writer)
        if writer in self._writers:
            return []
        if any(entry.state is RegionState.QUARANTINED for entry in self.catalog.entries_of(writer)):
            return self._await_end(writer)
        self._forget_if_over(writer)
        return []

    def _await_end(self, writer: Address) -> list[Effect]:
        """Have the silent writer's process watched; without a process id a lapsed registration must do."""
        pid = self.absences.pid_of(writer)
        if pid is not None:
            return [Send(PROCESSES, AwaitProcessEnd(writer, pid))]
        if self.absences.has_registration_ended(writer):
            self._process_ended(writer)
        return []

    def _forget_if_over(self, writer: Address) -> None:
        if (
            writer not in self._writers
            and self.absences.has_registration_ended(writer)
            and not self.catalog.entries_of(writer)
        ):
            self.absences.forget(writer)

    def _process_ended(self, writer: Address) -> None:
        """Its process surely ended: it writes nowhere any more. What it committed waits for its grace."""
        self.absences.forget(writer)
        if writer.role != "kvstore":  # regions that another kvstore sends are written by this process
            self.catalog.free_unwritten(writer)

    def _is_outlived(self, writer: Address) -> bool:
        return any(writer.incarnation < other.incarnation for other in self._writers.incarnations(writer))

    def _why_refused(self, asked: ReserveRegion) -> Why:
        room = self.catalog.allocator
        figures = (
            Figure("asked_bytes", asked.length_bytes),
            Figure("free_bytes", room.free_bytes),
            Figure("largest_free_bytes", room.largest_free_bytes),
            Figure("regions", len(self.catalog)),
            Figure("max_regions", self._tier.max_regions),
        )
        rejected = RejectedOption("reserve", "no free range is long enough, or no handle is left")
        return Why("best_fit", "refuse", figures, (rejected,))
