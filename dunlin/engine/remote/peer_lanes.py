"""The connections to one peer: one for KV, and one for what a step of the peer waits for, so that it waits for no KV.

Another peer has other connections, each with a thread of its own: a slow one delays only its own transfers.
"""

from dataclasses import replace

from dunlin.engine.remote.peer_sender import PeerCalls, PeerSender
from dunlin.engine.remote.protocol import Greeting
from dunlin.messages.engine import Transfer
from dunlin.messages.types import Payload

KV_WINDOW = 8
"""Chunks of KV on their way at once, 4 MiB: enough for two processes that seldom run at the same time."""
URGENT_WINDOW = 2


class PeerLanes:
    """Owns the senders to one peer. That for activations is made with the first of them."""

    def __init__(self, greeting: Greeting, calls: PeerCalls) -> None:
        self._greeting = greeting
        self._calls = calls
        self._kv = PeerSender(greeting, calls, KV_WINDOW)
        self._urgent: PeerSender | None = None

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer. :raises TransferError: as `PeerSender.submit`."""
        if transfer.payload is Payload.KV:
            self._kv.submit(transfer)
            return
        if self._urgent is None:
            self._urgent = PeerSender(self._greeting, replace(self._calls, met=lambda detail: None), URGENT_WINDOW)
        self._urgent.submit(transfer)

    def cancel(self, ticket: int) -> None:
        """Stop a transfer; an unknown one is ignored."""
        self._kv.cancel(ticket)
        if self._urgent is not None:
            self._urgent.cancel(ticket)

    def close(self, reason: str) -> None:
        """End the connections; what is not answered fails."""
        self._kv.close(reason)
        if self._urgent is not None:
            self._urgent.close(reason)
