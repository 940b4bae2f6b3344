"""Carries regions by one-sided writes, in a thread that is the only one to touch the agent.

Has the interface of `RegionReceiver` and `Sender` (sockets). The thread polls often while regions move, and seldom when
none is expected; no call waits for it.
"""

import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from dunlin.messages.exchange import TransferAgent
from dunlin.messages.types import Priority
from dunlin.transport.one_sided.agent import Agent, AgentError
from dunlin.transport.one_sided.inbound import InboundTransfers, OnReceived
from dunlin.transport.one_sided.notices import ChunkWritten, WriteAbandoned, WriteRequested, decode_notice
from dunlin.transport.one_sided.outbound import OneSidedSend, OnSent, OutboundTransfers
from dunlin.transport.payload import TOKEN_BYTES, PayloadError, RegionHeader

MOVING_S = 20e-6
EXPECTING_S = 0.5e-3
IDLE_S = 0.02
"""Seconds between two polls: a region moves; one is expected; nothing is."""
LINGER_S = 5e-3
"""Seconds after any event in which the thread polls as if a region moved: an expected one mostly comes at once."""

Command = Callable[[float], None]


class TransferLoop:
    """Owns the agent and its thread. `received` and `sent` are called from that thread."""

    def __init__(
        self,
        room: memoryview,
        agent: Agent,
        received: OnReceived,
        sent: OnSent,
        *,
        most_waiting: int = 4096,
        patience_s: float = 10.0,
        stall_s: float = 5.0,
    ) -> None:
        self.descriptor = agent.descriptor
        self._room = room
        self._agent = agent
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._most_waiting = most_waiting
        self._inbound = InboundTransfers(room, agent, received, patience_s=patience_s, stall_s=stall_s)
        self._outbound = OutboundTransfers(room, agent, sent, patience_s=patience_s, stall_s=stall_s)
        self._failure = ""
        self._happened_s = 0.0
        self._thread = threading.Thread(target=self._run, name="regions", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str:
        """Why it takes no more transfers; empty while it does."""
        return self._failure

    def expect(self, payload: RegionHeader, offset_bytes: int, peer: TransferAgent) -> bytes:
        """Announce a region (its token is ignored) that belongs at `offset_bytes`; the token that must come with it.

        Raises:
            ValueError: it lies outside the tier.
            AgentError: too many regions are expected already, or the thread has failed.
        """
        if offset_bytes < 0 or payload.length_bytes < 0 or offset_bytes + payload.length_bytes > len(self._room):
            raise ValueError(f"{payload.length_bytes} bytes at {offset_bytes} of a tier of {len(self._room)}")
        if self._is_full(self._inbound):
            raise AgentError(self._failure or "too many regions are expected")
        wanted = replace(payload, token=secrets.token_bytes(TOKEN_BYTES))
        self._commands.put(lambda now_s: self._inbound.expect(wanted, offset_bytes, peer, now_s))
        return wanted.token

    def abandon(self, token: bytes) -> None:
        """The region is no longer wanted; `received` is still called."""
        self._commands.put(lambda now_s: self._inbound.abandon(token, now_s))

    def submit(self, what: OneSidedSend, priority: Priority) -> bool:
        """Queue a transfer; False when too many wait."""
        if self._is_full(self._outbound):
            return False
        self._commands.put(lambda now_s: self._outbound.submit(what, priority, now_s))
        return True

    def peer_gone(self, name: str) -> None:
        """The peer is gone."""
        self._commands.put(lambda now_s: self._drop_peer(name, now_s))

    def close(self) -> None:
        """End the thread; transfers under way are dropped without a report."""
        self._commands.put(None)
        self._thread.join(5.0)

    def _is_full(self, side: InboundTransfers | OutboundTransfers) -> bool:
        return bool(self._failure) or len(side) + self._commands.qsize() >= self._most_waiting

    def _run(self) -> None:
        try:
            while self._poll_once():
                pass
            self._agent.close()
        except Exception as error:  # of any kind: all waiting transfers fail with it
            self._failure = str(error) if isinstance(error, AgentError) else f"{type(error).__name__}: {error}"
            self._fail_all()
            while (command := self._commands.get()) is not None:
                command(time.monotonic())
                self._fail_all()

    def _poll_once(self) -> bool:
        """One turn: commands, notices, timeouts; False at the end."""
        if not self._run_commands():
            return False
        now_s = time.monotonic()
        for name, data in self._agent.notices():
            self._happened_s = now_s
            self._on_notice(name, data, now_s)
        self._inbound.tick(now_s)
        self._outbound.tick(now_s)
        return True

    def _run_commands(self) -> bool:
        """Carry out the queued commands, or wait a moment for one; False at the end."""
        try:
            command = self._commands.get(timeout=self._pause_s())
            while command is not None:
                self._happened_s = time.monotonic()
                command(self._happened_s)
                command = self._commands.get_nowait()
        except queue.Empty:
            return True
        return False

    def _pause_s(self) -> float:
        is_moving = self._inbound.is_moving or self._outbound.is_moving
        if is_moving or time.monotonic() - self._happened_s < LINGER_S:
            return MOVING_S
        return EXPECTING_S if len(self._inbound) or len(self._outbound) else IDLE_S

    def _on_notice(self, name: str, data: bytes, now_s: float) -> None:
        try:
            notice = decode_notice(data)
        except PayloadError:
            return  # not one of ours
        if isinstance(notice, WriteRequested | ChunkWritten | WriteAbandoned):
            self._inbound.on_notice(name, notice, now_s)
        else:
            self._outbound.on_notice(name, notice, now_s)

    def _drop_peer(self, name: str, now_s: float) -> None:
        self._inbound.peer_gone(name, f"{name} is gone", now_s)
        self._outbound.peer_gone(name, f"{name} is gone", now_s)
        self._agent.remove_peer(name)

    def _fail_all(self) -> None:
        """The library failed: every waiting transfer fails, and no new one is taken."""
        now_s = time.monotonic()
        for name in self._inbound.peers():
            self._inbound.peer_gone(name, self._failure, now_s)
        for name in self._outbound.peers():
            self._outbound.peer_gone(name, self._failure, now_s)
