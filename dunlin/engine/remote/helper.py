"""The engine's commands as a transfer helper takes them: meets peers on other nodes, and sends them what is ordered.

`Meet` of the own engine is the order to serve it: peers may come from then on, by the agent in the answer. Every
transfer has one answer, as with an engine.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from dunlin.effects import Address
from dunlin.engine.remote.backends import Backend, LinkSettings
from dunlin.engine.remote.engine_memory import EngineMemory
from dunlin.engine.remote.peer_lanes import PeerLanes
from dunlin.engine.remote.peer_sender import PeerCalls
from dunlin.engine.remote.protocol import PEERS_MOST, TOKEN_BYTES, Greeting
from dunlin.engine.remote.receiver import ChunkReceiver
from dunlin.engine.transfer.errors import TransferError
from dunlin.messages.agent import EngineAgent
from dunlin.messages.engine import CancelTransfer, Forget, Meet, Met, Transfer, TransferDone, Unsupported
from dunlin.messages.types import TransferKind
from dunlin.wire.codec import CodecError, decode, encode
from dunlin.wire.security import server_name

Event = Any


class TransferHelper:
    """Owns the senders, one per peer. `tell` takes events, from any thread."""

    def __init__(
        self,
        engine: Address,
        endpoint: str,
        receiver: ChunkReceiver,
        backend: Backend,
        settings: LinkSettings,
        tell: Callable[[Event], None],
    ) -> None:
        self._engine = engine
        self._endpoint = endpoint
        self._receiver = receiver
        self._backend = backend
        self._settings = settings
        self._tell = tell
        self._agent: EngineAgent | None = None
        self._senders: dict[Address, PeerLanes] = {}

    def receive(self, message: Any) -> None:
        """Take a command."""
        match message:
            case Meet() if message.peer == self._engine:
                self._serve(message)
            case Meet():
                self._meet(message)
            case Forget():
                self._forget(message.peer)
            case Transfer():
                self._send(message)
            case CancelTransfer():
                for sender in self._senders.values():
                    sender.cancel(message.ticket)
            case _:
                self._tell(Unsupported(type(message).__name__, "not a command of a transfer helper"))

    def close(self) -> None:
        """End all connections."""
        for peer in list(self._senders):
            self._forget(peer)
        self._receiver.close()

    def _serve(self, message: Meet) -> None:
        try:
            agent = _agent(message.metadata)
            token = self._receiver.serve(agent)
        except TransferError as error:
            self._tell(Met(message.peer, str(error)))
            return
        self._agent = agent
        said = replace(agent, endpoint=self._endpoint, token=token)
        self._tell(Met(message.peer, agent=encode(said)))

    def _meet(self, message: Meet) -> None:
        peer = message.peer
        self._forget(peer)
        try:
            agent = _agent(message.metadata)
            if not agent.endpoint or len(agent.token) != TOKEN_BYTES:
                raise TransferError("the peer has no transfer helper")
            if len(self._senders) >= PEERS_MOST:
                raise TransferError(f"{PEERS_MOST} peers were met already")
        except TransferError as error:
            self._tell(Met(peer, str(error)))
            return
        name = server_name("instance", peer.name)
        calls = PeerCalls(
            lambda: self._backend.dial(agent.endpoint, name, self._settings),
            self._memory,
            time.monotonic,
            lambda detail: self._tell(Met(peer, detail)),
            self._ended,
        )
        self._senders[peer] = PeerLanes(Greeting(agent.token, self._engine.name), calls)

    def _forget(self, peer: Address) -> None:
        sender = self._senders.pop(peer, None)
        if sender is not None:
            sender.close(f"{peer} is gone, or was met anew")

    def _send(self, transfer: Transfer) -> None:
        sender = self._senders.get(transfer.peer) if transfer.peer is not None else None
        try:
            if transfer.kind is not TransferKind.SLAB_TO_PEER or sender is None:
                raise TransferError(f"{transfer.peer} was not met")
            sender.submit(transfer)
        except TransferError as error:
            self._tell(Unsupported("Transfer", str(error), ticket=transfer.ticket))

    def _memory(self) -> EngineMemory:
        if self._agent is None:
            raise TransferError("no engine is served")
        return EngineMemory(self._agent)

    def _ended(self, done: TransferDone) -> None:
        self._tell(done)


def _agent(metadata: bytes) -> EngineAgent:
    try:
        return cast(EngineAgent, decode("EngineAgent", metadata))
    except CodecError as error:
        raise TransferError(f"the peer's metadata cannot be read: {error}") from None
