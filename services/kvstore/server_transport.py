"""Carries regions between nodes for the core: an outlet around `dunlin.transport`'s threads.

Knows the tier's memory and the process's certificates; what is sent and expected, the core says.
"""

import asyncio
from collections.abc import Callable

from dunlin.effects import Message
from dunlin.host import Host
from dunlin.transport.payload import Payload
from dunlin.transport.receiver import Receiver
from dunlin.transport.sender import Parcel, Sender
from dunlin.wire.security import Security, server_name
from services.kvstore.carriage import TRANSPORT, Abandon, Expect, Expecting, Goods, Push, Pushed, Received


class Carrier:
    """Owns the sender and the receiver of this process."""

    def __init__(
        self, host: Host, room: memoryview, listen: str, endpoint: Callable[[int], str], security: Security | None
    ) -> None:
        """Listen on any port of the address `listen`; `endpoint` makes of a port what others dial.

        Raises:
            OSError: no socket can be had there.
        """
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._tokens: dict[tuple[int, int], bytes] = {}
        server, client = (security.server_context(), security.client_context()) if security else (None, None)
        self._receiver = Receiver(room, self._received, host=listen, tls=server)
        self._sender = Sender(room, self._pushed, tls=client)
        self._endpoint = endpoint(self._receiver.port)

    def send(self, message: Message) -> bool:
        """What the core wants carried. Never full: what cannot be queued is answered at once."""
        match message:
            case Expect():
                self._expect(message.goods)
            case Abandon():
                token = self._tokens.get((message.handle, message.generation))
                if token is not None:
                    self._receiver.abandon(token)
            case Push():
                self._push(message)
        return True

    def close(self, reason: str) -> None:
        """End the threads."""
        self._receiver.close()
        self._sender.close()

    def _expect(self, goods: Goods) -> None:
        host = goods.host
        token = self._receiver.expect(_payload(goods, host.handle, host.generation), host.offset_bytes)
        self._tokens[host.handle, host.generation] = token
        self._host.deliver(TRANSPORT, Expecting(host.handle, host.generation, self._endpoint, token))

    def _push(self, push: Push) -> None:
        payload = _payload(push.goods, push.handle, push.generation, push.token)
        name = server_name(push.peer.role, push.peer.name)
        parcel = Parcel(push.ticket, push.endpoint, name, payload, push.goods.host.offset_bytes)
        if not self._sender.submit(parcel, push.priority):
            self._host.deliver(TRANSPORT, Pushed(push.ticket, "too many regions wait to be sent"))

    def _received(self, handle: int, generation: int, detail: str) -> None:
        self._later(Received(handle, generation, detail))

    def _pushed(self, ticket: int, detail: str) -> None:
        self._later(Pushed(ticket, detail))

    def _later(self, message: Message) -> None:
        """From a thread to the loop; a loop that is over needs no news."""
        try:
            self._loop.call_soon_threadsafe(self._tell, message)
        except RuntimeError:
            pass

    def _tell(self, message: Message) -> None:
        if isinstance(message, Received):
            self._tokens.pop((message.handle, message.generation), None)
        self._host.deliver(TRANSPORT, message)


def _payload(goods: Goods, handle: int, generation: int, token: bytes = b"") -> Payload:
    host = goods.host
    names = (goods.region, goods.kv_dtype, goods.chain)
    return Payload(token, handle, generation, *names, host.length_bytes, host.checksum)
