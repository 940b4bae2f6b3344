"""What carries regions between the host tiers of nodes: the transport of every kvstore."""

from dunlin.effects import Address, Effect, Message, Send
from services.kvstore.carriage import Abandon, Expect, Expecting, Goods, Push, Pushed, Received
from simulator.tier import HostTier


class Carrier:
    """Carries regions between the nodes' tiers, at once."""

    def __init__(self, tiers: dict[Address, HostTier]) -> None:
        self._tiers = tiers
        self._expected: dict[bytes, tuple[Address, Goods]] = {}

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, Expect):
            token, host = len(self._expected).to_bytes(16, "little"), message.goods.host
            self._expected[token] = (sender, message.goods)
            return [Send(sender, Expecting(host.handle, host.generation, sender.name, token))]
        if isinstance(message, Abandon):
            return [Send(sender, Received(message.handle, message.generation, "abandoned"))]
        if isinstance(message, Push):
            to, goods = self._expected[message.token]
            self._tiers[to].write(goods.host, self._tiers[sender].read(message.goods.host))
            return [Send(sender, Pushed(message.ticket)), Send(to, Received(message.handle, message.generation))]
        return []
