"""I7: a region of the host tier is reached by its current name alone, read whole, and written where room is reserved.

The watchers keep their own account of the engines' moves and of the names that kvstores gave, and compare it with the
catalogs.
"""

from collections.abc import Iterator
from math import inf
from typing import Any

from dunlin.effects import Address
from dunlin.messages.engine import EngineExited, Transfer, TransferDone, Unsupported
from dunlin.messages.pool import CommitRegion, RegionReserved, RegionsFound, RegionsRevoked, ReleaseRegion
from dunlin.messages.types import HostRegion, TransferKind, TransferStatus
from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

TAKEN_S = 1.0
"""Seconds by which an instance has been told that another attempt claimed its region."""
GIVEN_S = 0.1
"""Seconds by which moves that an instance ordered before it was told have begun."""
Name = tuple[Address, Address, int, int]
"""An instance's name of a region: instance, kvstore, handle, generation."""


class RegionWatcher(InvariantWatcher):
    """I7: an instance reads only its own, whole regions, and finds damage only where a fault did it."""

    invariant = "I7"
    roles = ("engine", "instance", "kvstore")

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._moves: dict[Address, dict[int, Transfer]] = {}
        self._keeper_of: dict[tuple[Address, int], Address] = {}
        self._dead: dict[Name, float] = {}
        self._unheard: dict[Name, float] = {}

    def before(self, event: Delivery) -> None:
        message = event.message
        if event.to.role == "engine" and isinstance(message, Transfer):
            self._begun(event.sender, message)
        elif event.sender.role == "engine" and isinstance(message, TransferDone):
            self._ended(event.to, message)
        elif isinstance(message, Unsupported) and message.what == "Transfer":
            self._moves.get(event.to, {}).pop(message.ticket, None)
            self._keeper_of.pop((event.to, message.ticket), None)
        elif isinstance(message, EngineExited):
            self._moves.pop(event.to, None)
        elif isinstance(message, RegionsRevoked):
            for handle, generation in zip(message.handle, message.generation, strict=True):
                self._dead[event.to, event.sender, handle, generation] = event.at_s
                self._unheard.pop((event.to, event.sender, handle, generation), None)

    def after(self, event: Delivery) -> None:
        if event.to.role == "kvstore":
            self._has_room(event)

    def audit(self) -> None:
        """Check that no instance counts on regions of a kvstore that it lost, or for long on another's."""
        self._are_told()
        for core in self.cluster.instances.values():
            for sequence in core.sequences:
                strange = [kept for kept in sequence.kept if kept.keeper != core.host_cache.kvstore]
                if strange:
                    raise self.fail(f"{core.address} has {core.host_cache.kvstore} and counts on {strange}")

    def _are_told(self) -> None:
        """Check that an instance that read under an old name was told so in time, unless a fault hit either side."""
        now_s = self.cluster.world.now_s
        for (instance, keeper, handle, generation), since_s in list(self._unheard.items()):
            if now_s <= since_s + TAKEN_S or not self.cluster.world.is_connected(instance, keeper):
                continue
            if not self.faults.was_disturbed(instance, keeper):
                raise self.fail(f"{instance} was not told that region {handle}.{generation} of {keeper} is another's")
            self.excuse("a disturbed instance or kvstore tells late that a region is another's")

    def _begun(self, instance: Address, move: Transfer) -> None:
        self._moves.setdefault(instance, {})[move.ticket] = move
        # The mapped memory counts: the instance may have changed to another kvstore since it ordered the move.
        keeper = self.cluster.mapped_of.get(instance)
        if keeper is None:
            return
        self._keeper_of[instance, move.ticket] = keeper
        if move.kind is not TransferKind.HOST_TO_SLAB or move.host is None or move.sequence == 0:
            return
        catalog = self._catalog(instance)
        if catalog is None or not self.cluster.world.is_connected(instance, keeper):
            return
        held = catalog.allocator.find(move.host.handle, move.host.generation)
        if held is None:
            del self._moves[instance][move.ticket]
            name = (instance, keeper, move.host.handle, move.host.generation)
            if self.cluster.world.now_s > self._dead.get(name, inf) + GIVEN_S:
                raise self.fail(f"{instance} reads {move.host}, and {keeper} has told it that another has it")
            # Message or order is in flight; a checksum guards the bytes.
            if name not in self._dead:
                self._unheard.setdefault(name, self.cluster.world.now_s)

    def _ended(self, instance: Address, done: TransferDone) -> None:
        move = self._moves.get(instance, {}).pop(done.ticket, None)
        keeper = self._keeper_of.pop((instance, done.ticket), None)
        if move is None or move.host is None:
            return
        if done.status is TransferStatus.OK and move.kind is TransferKind.SLAB_TO_HOST:
            self._written(instance, move.host)
        if done.status is TransferStatus.CORRUPT and not self._is_damaged(keeper, move.host):
            if not self._is_released(instance, move.host):
                raise self.fail(f"{instance} finds {move.host} damaged, and no fault damaged it")
            self.excuse("a region is found damaged that was released while it was read")

    def _is_damaged(self, keeper: Address | None, host: HostRegion) -> bool:
        """Whether a fault damaged the content of that region, or of the one that it was copied from."""
        memory = self.cluster.host_memories.get(keeper) if keeper is not None else None
        return memory is not None and host.offset_bytes in memory.damaged

    def _is_released(self, instance: Address, host: HostRegion) -> bool:
        """Whether the owner released the region while it was read, as after a cancelled migration."""
        catalog = self._catalog(instance)
        return catalog is None or catalog.allocator.find(host.handle, host.generation) is None

    def _catalog(self, instance: Address) -> Any:
        """The catalog of the kvstore whose memory the instance's engine has mapped; None if that is gone."""
        keeper = self.cluster.mapped_of.get(instance)
        core = self.cluster.core(keeper) if keeper is not None else None
        return None if core is None else core.catalog

    def _written(self, instance: Address, host: HostRegion) -> None:
        """Check that a write ended in the writer's own region or in free room."""
        catalog = self._catalog(instance)
        if catalog is None or catalog.allocator.find(host.handle, host.generation) is not None:
            return
        for entry in _entries(catalog):
            theirs = entry.host
            is_apart = (
                theirs.offset_bytes + theirs.length_bytes <= host.offset_bytes
                or host.offset_bytes + host.length_bytes <= theirs.offset_bytes
            )
            if not is_apart:
                raise self.fail(f"{instance} wrote {host}, where {entry.writer} has {theirs} by now", "I9")

    def _has_room(self, event: Delivery) -> None:
        """Check that no room is freed while an engine may still write there."""
        core = self.cluster.core(event.to)
        for instance, moves in self._moves.items():
            for move in moves.values() if core is not None and instance in self.cluster.cores else ():
                is_here = (
                    move.kind is TransferKind.SLAB_TO_HOST and self._keeper_of.get((instance, move.ticket)) == event.to
                )
                if not is_here or move.host is None:
                    continue
                if core.catalog.allocator.find(move.host.handle, move.host.generation) is None:
                    raise self.fail(f"{instance} writes {move.host}, which is free after {event}", "I9")


class RegionNameWatcher(InvariantWatcher):
    """I7: a kvstore gives each name (handle, generation) once; another's or an old name changes nothing."""

    invariant = "I7"
    roles = ("instance", "kvstore")

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._given: dict[tuple[Address, int, int], Delivery] = {}
        self._foreign: Any = None

    def before(self, event: Delivery) -> None:
        self._foreign = None
        message = event.message
        if isinstance(message, RegionReserved | RegionsFound):
            for host in _hosts(message):
                self._name(event, host)
        elif isinstance(message, CommitRegion | ReleaseRegion) and event.to.role == "kvstore":
            entry = self._entry(event.to, message.handle)
            if entry is not None and (entry.writer, entry.host.generation) != (event.sender, message.generation):
                self._foreign = entry

    def after(self, event: Delivery) -> None:
        before, self._foreign = self._foreign, None
        if before is None:
            return
        now = self._entry(event.to, before.host.handle)
        if now != before:
            raise self.fail(f"{event} is about a name that is not its sender's, and made {before} of {now}")

    def _name(self, event: Delivery, host: HostRegion) -> None:
        name = (event.sender, host.handle, host.generation)
        before = self._given.setdefault(name, event)
        if before is not event:
            raise self.fail(f"{event.sender} gives {event.to} the name {host}, which it has given {before.to}")

    def _entry(self, kvstore: Address, handle: int) -> Any:
        core = self.cluster.core(kvstore)
        return next((entry for entry in _entries(core.catalog) if entry.host.handle == handle), None)


def _hosts(message: RegionReserved | RegionsFound) -> list[HostRegion]:
    return [message.host] if isinstance(message, RegionReserved) else [kept.host for kept in message.regions]


def _entries(catalog: Any) -> Iterator[Any]:
    for writer in catalog.known_writers():
        yield from catalog.entries_of(writer)
