"""What carries regions between the host tiers of nodes: the transport of every kvstore."""

from collections.abc import Mapping

from dunlin.effects import Address, Effect, Message, Send
from services.kvstore.carriage import TRANSPORT, Abandon, Expect, Expecting, Goods, Push, Pushed, Received
from simulator.network import Links
from simulator.tier import HostTier
from simulator.world import World


class Carrier:
    """Carries regions over `links`, by priority; `node_of` says where a kvstore is."""

    def __init__(
        self, tiers: dict[Address, HostTier], world: World, links: Links, node_of: Mapping[Address, str]
    ) -> None:
        self._tiers = tiers
        self._world = world
        self._links = links
        self._node_of = node_of
        self._expected: dict[bytes, tuple[Address, Goods]] = {}
        self._numbers = 0

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """What a kvstore asks for."""
        if isinstance(message, Expect):
            self._numbers += 1
            token, host = self._numbers.to_bytes(16, "little"), message.goods.host
            self._expected[token] = (sender, message.goods)
            return [Send(sender, Expecting(host.handle, host.generation, sender.name, token))]
        if isinstance(message, Abandon):
            return [Send(sender, Received(message.handle, message.generation, "abandoned"))]
        if isinstance(message, Push):
            self._push(sender, message)
        return []

    def _push(self, sender: Address, push: Push) -> None:
        to, goods = self._expected[push.token]
        size = push.goods.host.length_bytes
        here, there = self._node_of[sender], self._node_of[to]
        self._links.carry(here, there, size, push.priority, lambda now_s: self._arrived(sender, push, to, goods))

    def _arrived(self, sender: Address, push: Push, to: Address, goods: Goods) -> None:
        self._tiers[to].write(goods.host, self._tiers[sender].read(push.goods.host))
        self._world.post(TRANSPORT, sender, Pushed(push.ticket))
        self._world.post(TRANSPORT, to, Received(push.handle, push.generation))
