"""Which modelled engines can be met, and what peers see of each: its links, its layers, the memory they write into."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dunlin.effects import Address
from simulator.engine.kv_audit import KvAudit
from simulator.engine.layers import LayerSet
from simulator.engine.stepping.group_meetings import GroupMeetings
from simulator.engine.stepping.group_steps import PeersDue
from simulator.engine.transit_rooms import SimulatedTransitRooms
from simulator.links.ports import EnginePorts


@dataclass(eq=False, slots=True)
class PeerEnd:
    """One engine as its peers see it: its links, and the memory that they write into, as long as `life` is the same.

    `open_rooms` are the rooms whose slots peers may write.
    """

    ports: EnginePorts
    layers: LayerSet
    audit: KvAudit | None
    rooms: SimulatedTransitRooms
    life: int
    open_rooms: set[int] = field(default_factory=set)

    @property
    def agent(self) -> bytes:
        """What a peer must know to reach it."""
        return f"{self.ports.name}/{self.life}".encode()


class PeerNetwork:
    """The engines that can be met, by address. `wake(engine, due)` gives an engine its timer."""

    def __init__(self, wake: Callable[[Address, PeersDue], None]) -> None:
        self.wake = wake
        self.ends: dict[Address, PeerEnd] = {}
        self.meetings = GroupMeetings()
        self._lives = 0

    def admit(
        self, engine: Address, ports: EnginePorts, layers: LayerSet, audit: KvAudit | None, rooms: SimulatedTransitRooms
    ) -> PeerEnd:
        """An engine can be met from now on; an engine that met its predecessor cannot write there any more."""
        self._lives += 1
        end = self.ends[engine] = PeerEnd(ports, layers, audit, rooms, self._lives)
        return end

    def renew(self, engine: Address) -> PeerEnd:
        """Shut out every peer until it meets the engine anew. Raises KeyError if there is no such engine."""
        self._lives += 1
        end = self.ends[engine] = replace(self.ends[engine], life=self._lives)
        for peer in self.meetings.partners(engine):
            self.wake(peer, PeersDue())
        return end
