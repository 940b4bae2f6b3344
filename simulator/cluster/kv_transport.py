"""The transport of all kvstores: it copies regions between the host tiers of nodes.

As the live one (`dunlin/transport/sockets/receiver.py`), it reports the outcome of each expected region exactly once; a
region that is never pushed is reported as lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Message, Send
from services.kvstore.transfer.transport_commands import (
    TRANSPORT,
    CancelReceive,
    ExpectRegion,
    PushRegion,
    ReceiveReady,
    RegionPayload,
    RegionPushed,
    RegionReceived,
)
from simulator.cluster.world import World
from simulator.engine.host_memory import SimulatedHostMemory
from simulator.links.ports import Fabric

PATIENCE_S = 10.0
"""Seconds until an expected region that was not pushed is lost."""


@dataclass(frozen=True, slots=True)
class PushDue:
    """Timer: the region of this token should have arrived."""

    token: bytes


class SimulatedKvTransport:
    """Copies regions between nodes, by priority. `node_of`: a kvstore's node; `memories`: a kvstore's host tier.

    `latency_s`: from the last byte sent to its arrival.
    """

    def __init__(
        self,
        memories: Mapping[Address, SimulatedHostMemory],
        world: World,
        fabric: Fabric,
        node_of: Mapping[Address, str],
        latency_s: float,
    ) -> None:
        self._memories = memories
        self._world = world
        self._fabric = fabric
        self._node_of = node_of
        self._latency_s = latency_s
        self._expected: dict[bytes, tuple[Address, RegionPayload]] = {}
        self._numbers = 0

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Handle a message of a kvstore's core, or a timer."""
        if isinstance(message, ExpectRegion):
            return self._expect(sender, message.payload)
        if isinstance(message, PushDue):
            return self._lost(message.token, "nothing came")
        if isinstance(message, CancelReceive):
            return [effect for token in self._tokens(sender, message) for effect in self._lost(token, "abandoned")]
        return self._push(sender, message) if isinstance(message, PushRegion) else []

    def _expect(self, sender: Address, goods: RegionPayload) -> list[Effect]:
        self._numbers += 1
        token, host = self._numbers.to_bytes(16, "little"), goods.host
        self._expected[token] = (sender, goods)
        expecting = ReceiveReady(host.handle, host.generation, sender.name, token)
        return [Send(sender, expecting), After(PATIENCE_S, PushDue(token))]

    def _lost(self, token: bytes, detail: str) -> list[Effect]:
        to, goods = self._expected.pop(token, (None, None))
        if to is None or goods is None:
            return []
        return [Send(to, RegionReceived(goods.host.handle, goods.host.generation, detail))]

    def _tokens(self, sender: Address, abandoned: CancelReceive) -> list[bytes]:
        name = (abandoned.handle, abandoned.generation)
        return [
            token
            for token, (to, goods) in self._expected.items()
            if to == sender and (goods.host.handle, goods.host.generation) == name
        ]

    def _push(self, sender: Address, push: PushRegion) -> list[Effect]:
        if push.token not in self._expected:
            return [Send(sender, RegionPushed(push.ticket, "it is not expected"))]
        to, _ = self._expected[push.token]
        size = push.payload.host.length_bytes
        path = self._fabric.topology.between_hosts(self._node_of[sender], self._node_of[to])
        self._fabric.flows.start(self._world.now_s, path, size, push.priority, lambda at_s: self._sent(sender, push))
        return []

    def _sent(self, sender: Address, push: PushRegion) -> None:
        self._world.call_later(self._latency_s, lambda: self._arrived(sender, push))

    def _arrived(self, sender: Address, push: PushRegion) -> None:
        """The last byte arrived: store the region, unless it is no longer expected or its sender died meanwhile."""
        to, goods = self._expected.pop(push.token, (None, None))
        if to is None or goods is None:
            return self._world.post(TRANSPORT, sender, RegionPushed(push.ticket, "it is not expected"))
        if not self._world.is_up(sender):
            return self._world.post(TRANSPORT, to, RegionReceived(push.handle, push.generation, "the sender is gone"))
        self._memories[to].copy_from(self._memories[sender], push.payload.host, goods.host)
        self._world.post(TRANSPORT, sender, RegionPushed(push.ticket))
        return self._world.post(TRANSPORT, to, RegionReceived(push.handle, push.generation))
