"""What carries regions between nodes, with its patience: what is expected and never pushed is told to be lost.

As the live one does (`dunlin/transport/receiver.py`), it says of each expected region what became of it, always.
"""

from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Message, Send
from services.kvstore.carriage import Abandon, Expect, Expecting, Goods, Push, Pushed, Received
from simulator.tier import HostTier

PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class PushDue:
    """It should have been pushed by now."""

    token: bytes


class PatientCarrier:
    """Carries regions at once; `memories` are the kvstores' host tiers."""

    def __init__(self, memories: dict[Address, HostTier]) -> None:
        self._memories = memories
        self._expected: dict[bytes, tuple[Address, Goods]] = {}
        self._numbers = 0

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """What a kvstore's core says to its carrier."""
        if isinstance(message, Expect):
            return self._expect(sender, message.goods)
        if isinstance(message, PushDue):
            return self._lost(message.token, "nothing came")
        if isinstance(message, Abandon):
            return [effect for token in self._tokens(sender, message) for effect in self._lost(token, "abandoned")]
        return self._push(sender, message) if isinstance(message, Push) else []

    def _expect(self, sender: Address, goods: Goods) -> list[Effect]:
        self._numbers += 1
        token, host = self._numbers.to_bytes(16, "little"), goods.host
        self._expected[token] = (sender, goods)
        expecting = Expecting(host.handle, host.generation, sender.name, token)
        return [Send(sender, expecting), After(PATIENCE_S, PushDue(token))]

    def _lost(self, token: bytes, detail: str) -> list[Effect]:
        to, goods = self._expected.pop(token, (None, None))
        if to is None or goods is None:
            return []
        return [Send(to, Received(goods.host.handle, goods.host.generation, detail))]

    def _tokens(self, sender: Address, abandoned: Abandon) -> list[bytes]:
        name = (abandoned.handle, abandoned.generation)
        return [
            token
            for token, (to, goods) in self._expected.items()
            if to == sender and (goods.host.handle, goods.host.generation) == name
        ]

    def _push(self, sender: Address, push: Push) -> list[Effect]:
        to, goods = self._expected.pop(push.token, (None, None))
        if to is None or goods is None:
            return [Send(sender, Pushed(push.ticket, "nobody expects it"))]
        content = self._memories[sender].read(push.goods.host)
        self._memories[to].write(goods.host, content)
        return [Send(sender, Pushed(push.ticket)), Send(to, Received(push.handle, push.generation))]
