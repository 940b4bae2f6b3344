"""I8: slots that a peer's engine writes are never free."""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.engine import EngineExited, Transfer, TransferDone, Unsupported
from dunlin.messages.types import TransferKind
from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

Extents = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class PeerWrite:
    """A copy under way into `extents` of the engine of `target` in its incarnation of then."""

    target: Address
    incarnation: int
    extents: Extents


class PeerWriteWatcher(InvariantWatcher):
    """I8: no slot is free that another engine has been told to write and has not answered.

    A source without a stream to the target is fenced by the target's engine instead; so is one that met another life of
    that engine.
    """

    invariant = "I8"
    roles = ("engine", "instance")

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._writes: dict[Address, dict[int, PeerWrite]] = {}

    def before(self, event: Delivery) -> None:
        message = event.message
        if event.to.role == "engine" and isinstance(message, Transfer):
            if message.kind is TransferKind.SLAB_TO_PEER:
                self._begun(event.sender, message)
        elif isinstance(message, TransferDone | Unsupported):
            self._writes.get(event.to, {}).pop(message.ticket, None)
        elif isinstance(message, EngineExited):
            self._writes.pop(event.to, None)

    def after(self, event: Delivery) -> None:
        if not self._writes or event.to.role != "instance":
            return
        for source, writes in self._writes.items():
            for write in writes.values():
                if write.target == event.to:
                    self._is_held(source, write, event)

    def _begun(self, source: Address, message: Transfer) -> None:
        found = [one for one in self.cluster.engine_supervisors if message.peer == Address("engine", one.name)]
        if found:
            extents = list(zip(message.peer_extent_start, message.peer_extent_length, strict=True))
            write = PeerWrite(found[0], self.cluster.engine_supervisors[found[0]].incarnation, extents)
            self._writes.setdefault(source, {})[message.ticket] = write

    def _is_held(self, source: Address, write: PeerWrite, event: Delivery) -> None:
        core, supervisor = self.cluster.core(write.target), self.cluster.engine_supervisors.get(write.target)
        is_same = supervisor is not None and supervisor.incarnation == write.incarnation
        if core is None or not is_same or not self.cluster.has_engine(write.target):
            return
        if not core.slot_table.has_free(write.extents):
            return
        if self.cluster.world.is_connected(source, write.target):
            raise self.fail(f"{source} writes {write.extents} of {write.target}, some of which are free after {event}")
        self.excuse("slots are free that a peer without a stream writes, whom the engine shuts out")
