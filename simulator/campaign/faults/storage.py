"""Faults of host tiers: damaged regions, no room."""

from dunlin.effects import Address, Effect, Gone, Message, Send
from dunlin.messages.pool import RegionReserved, ReleaseRegion, ReserveRegion, TierReady
from dunlin.messages.types import HostRegion, Region
from simulator.campaign.faults.victims import VictimChooser
from simulator.campaign.plans import Fault
from simulator.cluster.simulated import SimulatedCluster


class StorageFaults:
    """Faults of host tiers."""

    def __init__(self, cluster: SimulatedCluster, victims: VictimChooser) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._victims = victims

    def do_corrupt(self, fault: Fault) -> Address | None:
        """Flip a bit of one region of a host tier, or of every region."""
        kvstore = self._victims.of_role("kvstore", fault.pick)
        memory = self._cluster.host_memories.get(kvstore) if kvstore is not None else None
        offsets = sorted(offset for offset, content in memory.contents.items() if content) if memory else []
        if memory is None or kvstore is None or not offsets:
            return None
        for offset in offsets if fault.amount < 0.5 else [offsets[int(fault.other * len(offsets))]]:
            memory.corrupt(offset)
        return kvstore

    def do_tier_full(self, fault: Fault) -> Address | None:
        """A process reserves most of a host tier for a while."""
        kvstore = self._victims.of_role("kvstore", fault.pick)
        if kvstore is None or self._cluster.etcd.is_down:
            return None
        hog = Address("instance", "hog", self._cluster.etcd.next_revision())
        self._world.add(hog, SpaceHog(hog, kvstore, self._cluster.spec.tier_bytes))
        self._world.connect(hog, kvstore)
        self._world.call_later(fault.lasts_s, lambda: self._end_hog(hog, kvstore))
        return kvstore

    def _end_hog(self, hog: Address, kvstore: Address) -> None:
        """Let the hog release its room, and kill it when the kvstore has heard that."""
        core = self._cluster.core(kvstore)
        if core is None or hog not in core.catalog.known_writers():
            return self._world.kill(hog)
        self._world.post(hog, hog, Gone("enough"), 0.0)
        return self._world.call_later(0.5, lambda: self._end_hog(hog, kvstore))


class SpaceHog:
    """Reserves most of a host tier, writes nothing, and releases it at its end."""

    def __init__(self, own: Address, kvstore: Address, tier_bytes: int) -> None:
        self._own = own
        self._kvstore = kvstore
        self._each_bytes = max(4096, tier_bytes // 8)
        self._held: list[HostRegion] = []

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Handle the kvstore's answers, and its own `Gone`, which makes it release its room."""
        if isinstance(message, TierReady):
            return [Send(self._kvstore, self._wish(ticket)) for ticket in range(7)]
        if isinstance(message, RegionReserved):
            self._held.append(message.host)
        if isinstance(message, Gone) and sender == self._own:
            return [Send(self._kvstore, ReleaseRegion(host.handle, host.generation)) for host in self._held]
        return []

    def _wish(self, ticket: int) -> ReserveRegion:
        names = (ticket, self._own, ticket, 1, Region(0, 2, 0, 1), self._each_bytes, "float32", "hog")
        return ReserveRegion(*names, key=f"hog {ticket}")
