"""Sends regions to several peers: each has a sender of its own, so one that is dead or slow delays its own alone.

A peer that is started again has another endpoint: the sender to its last one goes when there are too many.
"""

from dunlin.auth.tls_context import MakeContext
from dunlin.messages.types import Priority
from dunlin.transport.sockets.sender import OnSent, RegionSend, RegionSender

PEERS_MOST = 64
"""Peers that regions are sent to at once; a thread each."""


class PeerSenders:
    """Owns the senders by endpoint, the one used last at the end. All calls come from one thread; `sent` is called from
    the senders' threads.
    """

    def __init__(
        self,
        room: memoryview,
        sent: OnSent,
        *,
        tls: MakeContext | None = None,
        stall_s: float = 5.0,
        most_peers: int = PEERS_MOST,
    ) -> None:
        self._room = room
        self._sent = sent
        self._tls = tls
        self._stall_s = stall_s
        self._most_peers = most_peers
        self._senders: dict[str, RegionSender] = {}

    def submit(self, parcel: RegionSend, priority: Priority) -> bool:
        """Queue a parcel; False when too many wait, or too many peers have some."""
        sender = self._senders.pop(parcel.endpoint, None)
        if sender is None:
            if len(self._senders) >= self._most_peers and not self._forget_idle():
                return False
            sender = RegionSender(self._room, self._sent, tls=self._tls, stall_s=self._stall_s)
        self._senders[parcel.endpoint] = sender
        return sender.submit(parcel, priority)

    def close(self) -> None:
        """Finish the chunks that are being sent, and send no more."""
        for sender in self._senders.values():
            sender.stop()
        for sender in self._senders.values():
            sender.close()
        self._senders.clear()

    def _forget_idle(self) -> bool:
        """End the sender that has had nothing to do for longest; False: all have."""
        idle = next((endpoint for endpoint, sender in self._senders.items() if sender.is_idle), None)
        if idle is None:
            return False
        self._senders.pop(idle).close()
        return True
