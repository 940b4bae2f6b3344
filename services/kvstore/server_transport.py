"""Carries regions between nodes for the core: an outlet around `dunlin.transport`'s threads.

Knows the host tier's memory and the process's certificates; the core decides what is sent and expected. The receiver
chooses the way: one-sided writes where both sides have an agent for them, else sockets.
"""

import asyncio
import logging
from collections.abc import Callable

from dunlin.effects import Address, Message
from dunlin.messages.exchange import TransferAgent
from dunlin.runtime.core_host import CoreHost
from dunlin.transport.one_sided.agent import Agent, AgentError
from dunlin.transport.one_sided.nixl_agent import has_fast_network, is_installed, open_nixl_agent
from dunlin.transport.one_sided.outbound import OneSidedSend
from dunlin.transport.one_sided.transfer_loop import TransferLoop
from dunlin.transport.payload import RegionHeader
from dunlin.transport.sockets.peer_senders import PeerSenders
from dunlin.transport.sockets.receiver import RegionReceiver
from dunlin.transport.sockets.sender import RegionSend
from dunlin.wire.certificate_reloader import CertificateReloader
from dunlin.wire.security import server_name
from services.kvstore.transfer.transport_commands import (
    TRANSPORT,
    CancelReceive,
    ExpectRegion,
    ForgetPeer,
    PushRegion,
    ReceiveReady,
    RegionPayload,
    RegionPushed,
    RegionReceived,
)

AGENT_BAN_S = 30.0
"""A peer whose one-sided writes did not arrive is asked to use sockets for so long, seconds."""
_FAULTS = ("nothing came", "stalled")

_log = logging.getLogger(__name__)


def choose_agent(transport: str, name: str, is_secured: bool) -> Agent | None:
    """The agent for one-sided writes that this process is to have; None means sockets alone.

    Args:
        transport: `sockets`, `nixl`, or `auto`: NIXL if it is installed and starts, there is a network that it is
            faster on, and the cluster has no certificates, for it neither encrypts nor authenticates.
        name: the process's.
        is_secured: whether the cluster has certificates.

    Raises:
        AgentError: `nixl`, and it does not start.
    """
    pays = not is_secured and is_installed() and has_fast_network()
    if transport == "sockets" or (transport == "auto" and not pays):
        return None
    try:
        return open_nixl_agent(name)
    except AgentError as error:
        if transport == "nixl":
            raise
        _log.warning("regions go to other nodes by sockets: %s", error)
        return None


class RegionTransport:
    """Owns the senders and the receiver of this process, and the courier if there is an agent."""

    def __init__(
        self,
        host: CoreHost,
        room: memoryview,
        listen: str,
        endpoint: Callable[[int], str],
        security: CertificateReloader | None,
        agent: Agent | None = None,
        *,
        may_shun: bool = True,
    ) -> None:
        """Listen on any port of the address `listen`; `endpoint` turns a port into the address that peers dial.

        With `may_shun`, a peer whose one-sided writes did not arrive is asked to use sockets for a while.

        Raises:
            OSError: no socket can be had there.
        """
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._expected: dict[tuple[int, int], tuple[bytes, str]] = {}
        self._agents: dict[Address, str] = {}
        self._banned: dict[str, float] = {}
        self._may_ban = may_shun
        server, client = (security.server_context, security.client_context) if security else (None, None)
        self._receiver = RegionReceiver(room, self._received, host=listen, tls=server)
        self._senders = PeerSenders(room, self._pushed, tls=client)
        self._courier = TransferLoop(room, agent, self._received, self._pushed) if agent is not None else None
        self._endpoint = endpoint(self._receiver.port)

    def send(self, message: Message) -> bool:
        """Take a command of the core. Never full: a command that cannot be queued is answered at once."""
        match message:
            case ExpectRegion():
                self._expect(message)
            case CancelReceive():
                self._abandon(message)
            case PushRegion():
                self._push(message)
            case ForgetPeer():
                self._forget(message.peer)
        return True

    def close(self, reason: str) -> None:
        """End the threads."""
        self._receiver.close()
        self._senders.close()
        if self._courier is not None:
            self._courier.close()

    def _expect(self, message: ExpectRegion) -> None:
        host = message.payload.host
        name = (host.handle, host.generation)
        payload = _payload(message.payload, *name)
        token = self._expect_written(payload, host.offset_bytes, message)
        about = self._courier.descriptor if self._courier is not None and token else None
        token = token or self._receiver.expect(payload, host.offset_bytes)
        self._expected[name] = (token, message.agent.name if message.agent is not None and about is not None else "")
        self._host.deliver(TRANSPORT, ReceiveReady(*name, self._endpoint, token, about))

    def _expect_written(self, payload: RegionHeader, offset_bytes: int, message: ExpectRegion) -> bytes:
        """The token of a region that is to come by one-sided writes; empty bytes for sockets."""
        agent = message.agent
        if self._courier is None or agent is None or self._is_banned(agent):
            return b""
        try:
            token = self._courier.expect(payload, offset_bytes, agent)
        except AgentError:
            return b""
        if self._agents.get(message.peer) != agent.name:
            _log.info("regions of %s come by one-sided writes", message.peer.name)
        self._agents[message.peer] = agent.name
        return token

    def _abandon(self, message: CancelReceive) -> None:
        token, agent = self._expected.get((message.handle, message.generation), (b"", ""))
        if self._courier is not None and agent:
            self._courier.abandon(token)
        elif token:
            self._receiver.abandon(token)

    def _push(self, push: PushRegion) -> None:
        payload = _payload(push.payload, push.handle, push.generation, push.token)
        offset_bytes = push.payload.host.offset_bytes
        if push.agent is not None and self._courier is not None:
            self._agents[push.peer] = push.agent.name
            taken = self._courier.submit(OneSidedSend(push.ticket, push.agent, payload, offset_bytes), push.priority)
        else:
            name = server_name(push.peer.role, push.peer.name)
            taken = self._senders.submit(
                RegionSend(push.ticket, push.endpoint, name, payload, offset_bytes), push.priority
            )
        if not taken:
            self._host.deliver(TRANSPORT, RegionPushed(push.ticket, "too many regions wait to be sent"))

    def _forget(self, peer: Address) -> None:
        name = self._agents.pop(peer, None)
        if self._courier is not None and name is not None:
            self._courier.peer_gone(name)

    def _is_banned(self, agent: TransferAgent) -> bool:
        until_s = self._banned.get(agent.name)
        if until_s is not None and until_s < self._loop.time():
            del self._banned[agent.name]
            return False
        return until_s is not None

    def _received(self, handle: int, generation: int, detail: str) -> None:
        self._post(RegionReceived(handle, generation, detail))

    def _pushed(self, ticket: int, detail: str) -> None:
        self._post(RegionPushed(ticket, detail))

    def _post(self, message: Message) -> None:
        """Pass an answer from a thread to the event loop; a closed loop drops it."""
        try:
            self._loop.call_soon_threadsafe(self._deliver, message)
        except RuntimeError:
            pass

    def _deliver(self, message: Message) -> None:
        if isinstance(message, RegionReceived):
            _, agent = self._expected.pop((message.handle, message.generation), (b"", ""))
            if agent and self._may_ban and message.detail.startswith(_FAULTS):
                self._ban(agent, message.detail)
        self._host.deliver(TRANSPORT, message)

    def _ban(self, agent: str, detail: str) -> None:
        now_s = self._loop.time()
        self._banned = {name: until_s for name, until_s in self._banned.items() if until_s > now_s}
        self._banned[agent] = now_s + AGENT_BAN_S
        _log.warning("%s writes no regions (%s): sockets for %g s", agent, detail, AGENT_BAN_S)


def _payload(goods: RegionPayload, handle: int, generation: int, token: bytes = b"") -> RegionHeader:
    host = goods.host
    names = (goods.region, goods.kv_dtype, goods.chain)
    return RegionHeader(token, handle, generation, *names, host.length_bytes, host.checksum)
