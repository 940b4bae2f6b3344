"""What an engine's peers have to do with its host: the rooms that they may write, and the helper between nodes.

For the core, engine and helper are one: it orders transfers from the engine's address, and those to engines of other
nodes are carried out by the helper. Lives as long as one engine process.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from dunlin.effects import Address, Message
from dunlin.engine.transfer.peer_rooms import PeerRoomTable
from dunlin.messages.agent import EngineAgent
from dunlin.messages.engine import (
    CancelTransfer,
    ClosePeerRoom,
    EngineReady,
    Forget,
    Meet,
    Met,
    OpenPeerRoom,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import Header, TransferKind, TransferStatus
from dunlin.wire.codec import CodecError, decode
from services.instance.server_step_gate import StepGate
from services.instance.server_transfer_helper import HelperStarter, TransferHelperProcess

_log = logging.getLogger(__name__)

BACKOFF_MAX_S = 10.0
HEALTHY_S = 5.0
"""After a helper that ran for so long the next one starts at once, seconds."""
NO_HELPER = "the transfer helper is not running"


class EnginePeers:
    """Owns the table of rooms, the helper process, the peers met by it, and its transfers that are not answered.

    `deliver` passes an event on to the core as one of the engine. Without `helpers` there is no helper, and engines of
    other nodes cannot be met.
    """

    def __init__(
        self,
        engine: Address,
        header: Header,
        rooms: PeerRoomTable,
        helpers: HelperStarter | None,
        deliver: Callable[[Message], None],
    ) -> None:
        self._engine = engine
        self._header = header
        self._rooms = rooms
        self._helpers = helpers
        self._deliver = deliver
        self._agent = b""
        self._helper: TransferHelperProcess | None = None
        self._met: dict[Address, Meet] = {}
        self._tickets: set[int] = set()
        self._gate = StepGate()

    async def run(self) -> None:
        """Keep a helper running until cancelled."""
        failures, loop = 0, asyncio.get_running_loop()
        while self._helpers is not None:
            helper = await self._helpers.start(self._header, self._on_helper_event)
            began_s = loop.time()
            try:
                self._introduce(helper)
                reason = await helper.lost
            finally:
                self._helper = None
                helper.end("its engine has ended")
                await helper.exited()
            self._on_helper_lost(reason)
            failures = 0 if loop.time() - began_s >= HEALTHY_S else failures + 1
            await asyncio.sleep(min(2.0**failures / 8, BACKOFF_MAX_S) if failures else 0.0)

    def close(self) -> None:
        """The engine is gone, and its rooms with it."""
        self._rooms.clear()

    # --- commands of the core ---

    def takes(self, message: Message) -> bool:
        """Carry out a command, if it is not for the engine."""
        self._gate.on_command(message)
        match message:
            case OpenPeerRoom():
                if not self._rooms.open(message.handle, message.extent_start, message.extent_length):
                    _log.warning("the room %d is not open to peers: too many, or in too many pieces", message.handle)
                return True
            case ClosePeerRoom():
                self._rooms.close(message.handle)  # before the engine waits for the last chunk
            case Meet():
                return self._meet(message)
            case Forget() if message.peer in self._met:
                del self._met[message.peer]
                self._send(message)
            case Transfer() if message.kind is TransferKind.SLAB_TO_PEER and message.peer in self._met:
                self._transfer(message)
                return True
            case CancelTransfer():
                return self._cancel(message)
        return False

    def _meet(self, message: Meet) -> bool:
        self._met.pop(message.peer, None)
        if not self._is_elsewhere(message.metadata):
            return False
        self._met[message.peer] = message
        if not self._send(message):
            self._deliver(Met(message.peer, NO_HELPER))
        return True

    def _is_elsewhere(self, metadata: bytes) -> bool:
        """Whether an agent is of another node and can be dialled; what else there is to say of it the engine says."""
        try:
            agent, own = (cast(EngineAgent, decode("EngineAgent", each)) for each in (metadata, self._agent))
        except CodecError:
            return False
        return self._helpers is not None and bool(agent.endpoint) and agent.node != own.node

    def _transfer(self, transfer: Transfer) -> None:
        if transfer.ticket in self._tickets:
            self._deliver(Unsupported("Transfer", f"{transfer.ticket} is under way", ticket=transfer.ticket))
            return
        self._tickets.add(transfer.ticket)
        if not self._gate.holds(transfer) and not self._send(transfer):
            self._end(transfer.ticket, TransferStatus.FAILED, NO_HELPER)

    def _cancel(self, message: CancelTransfer) -> bool:
        if message.ticket not in self._tickets:
            return False
        if self._gate.cancel(message.ticket) is not None:
            self._end(message.ticket, TransferStatus.CANCELLED, "")
        else:
            self._send(message)
        return True

    # --- events ---

    def on_engine_event(self, event: Message) -> None:
        """The engine said this: a new agent is told to the helper, and a step that ended frees what waits for it."""
        if isinstance(event, EngineReady | Met) and event.agent:
            self._agent = event.agent
            if self._helper is not None:
                self._helper.send(Meet(self._engine, self._agent))
        opened = self._gate.on_event(event)
        for transfer in opened.failed:
            self._end(transfer.ticket, TransferStatus.FAILED, f"the row left step {transfer.step}")
        for transfer in opened.ready:
            if not self._send(transfer):
                self._end(transfer.ticket, TransferStatus.FAILED, NO_HELPER)

    def _on_helper_event(self, event: Message) -> None:
        if isinstance(event, TransferDone | Unsupported):
            if event.ticket not in self._tickets:
                return
            self._tickets.discard(event.ticket)
        elif isinstance(event, Met) and event.peer == self._engine and event.detail:
            _log.warning("no engine of another node can write here: %s", event.detail)
            return
        elif isinstance(event, Met) and event.peer != self._engine:
            if event.peer not in self._met:
                return
            _log_met(event)
        self._deliver(event)

    def _on_helper_lost(self, reason: str) -> None:
        _log.error("the transfer helper ended (%s); another one starts", reason)
        for ticket in sorted(self._tickets):
            self._gate.cancel(ticket)
            self._end(ticket, TransferStatus.FAILED, NO_HELPER)
        if self._agent:
            self._deliver(Met(self._engine, agent=self._agent))  # no more by the helper that is gone

    def _introduce(self, helper: TransferHelperProcess) -> None:
        """Tell a new helper of its engine, and of the peers that were met."""
        self._helper = helper
        if self._agent:
            helper.send(Meet(self._engine, self._agent))
        for message in self._met.values():
            helper.send(message)

    def _send(self, message: Message) -> bool:
        return self._helper is not None and self._helper.send(message)

    def _end(self, ticket: int, status: TransferStatus, detail: str) -> None:
        self._tickets.discard(ticket)
        self._deliver(TransferDone(ticket, status, detail=detail))


def _log_met(event: Met) -> None:
    peer = f"{event.peer.role}/{event.peer.name}"
    if event.detail:
        _log.warning("%s on another node cannot be reached, KV goes by the host tiers: %s", peer, event.detail)
    else:
        _log.info("KV goes straight into the memory of %s on another node", peer)
