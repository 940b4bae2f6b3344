"""Sends transfers to one peer over one connection: a thread, chunk by chunk, the most urgent transfer first.

At most `window` chunks are on their way, so an urgent transfer waits for no more than what has left already. A
connection that ends is opened once again, and what has no answer is sent again: a chunk may arrive twice, for it says
by itself where it belongs.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dunlin.engine.remote.backends import Link
from dunlin.engine.remote.engine_memory import EngineMemory
from dunlin.engine.remote.outgoing import OutgoingTransfer
from dunlin.engine.remote.protocol import (
    ANSWER_BYTES,
    CHUNK_BYTES,
    UNWELCOME,
    WELCOME,
    Greeting,
    ProtocolError,
    decode_answer,
    encode_checksum,
)
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.messages.engine import Transfer, TransferDone
from dunlin.messages.types import TransferStatus

WAITING_MOST = 1024


class UnwelcomeError(Exception):
    """The peer does not take transfers of this process."""


@dataclass(frozen=True, slots=True)
class PeerCalls:
    """What a sender needs of its process: connections, the own memory, the time, and where its answers go.

    `met` is called once, with why the peer cannot be reached, or nothing; `ended` once for each transfer.
    """

    dial: Callable[[], Link]
    memory: Callable[[], EngineMemory]
    clock: Callable[[], float]
    met: Callable[[str], None]
    ended: Callable[[TransferDone], None]


@dataclass(slots=True)
class _Sent:
    """A chunk without an answer, kept to be sent again."""

    number: int
    transfer: OutgoingTransfer
    head: bytes
    data: Bytes
    buffer: Bytes = field(repr=False)


class PeerSender:
    """Owns the thread, the connection, and the transfers to one peer that are not answered."""

    def __init__(self, greeting: Greeting, calls: PeerCalls, window: int) -> None:
        self._greeting = greeting
        self._calls = calls
        self._changed = threading.Condition()
        self._transfers: dict[int, OutgoingTransfer] = {}
        self._is_closing = False
        self._orders = itertools.count()
        self._numbers = itertools.count(1)
        self._link: Link | None = None
        self._memory: EngineMemory | None = None
        self._sent: deque[_Sent] = deque()
        self._buffers = [np.empty(CHUNK_BYTES, dtype=np.uint8) for _ in range(window)]
        self._may_redial = True
        self._thread = threading.Thread(target=self._run, name="transfers-out", daemon=True)
        self._thread.start()

    def submit(self, transfer: Transfer) -> None:
        """Queue a transfer. :raises TransferError: too many wait, or the ticket is in use: nothing is done."""
        with self._changed:
            if self._is_closing or len(self._transfers) >= WAITING_MOST or transfer.ticket in self._transfers:
                raise TransferError(f"{len(self._transfers)} transfers are queued, or {transfer.ticket} is one of them")
            order, now_s = next(self._orders), self._calls.clock()
            self._transfers[transfer.ticket] = OutgoingTransfer(transfer, order, now_s)
            self._changed.notify()

    def cancel(self, ticket: int) -> None:
        """Stop a transfer; it ends once nothing of it is on its way."""
        with self._changed:
            found = self._transfers.get(ticket)
            if found is not None and found.verdict is None:
                found.verdict = (TransferStatus.CANCELLED, "")
                self._changed.notify()

    def close(self, reason: str) -> None:
        """End the connection; what is not answered fails."""
        with self._changed:
            self._is_closing = True
            link = self._link
            for each in self._transfers.values():
                each.verdict = each.verdict or (TransferStatus.FAILED, reason)
            self._changed.notify()
        if link is not None:
            link.close()

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._open()
        except (OSError, EOFError, ValueError, TransferError, UnwelcomeError) as error:
            self._calls.met(f"{error or type(error).__name__}")
        else:
            self._calls.met("")
        while (turn := self._next()) is not None:
            try:
                turn()
            except (OSError, EOFError, ValueError, ProtocolError, UnwelcomeError) as error:
                self._reconnect(error)
            self._answer_ended()
        self._drop_sent("the peer is forgotten")
        self._answer_ended()
        self._hang_up()
        self._let_go()

    def _next(self) -> Callable[[], None] | None:
        """What to do now; None at the end."""
        with self._changed:
            while not self._is_closing:
                ready = [each for each in self._transfers.values() if each.can_send]
                if ready and self._buffers:
                    urgent = min(ready, key=lambda each: each.key)
                    return lambda: self._send_chunk(urgent)
                if self._sent:
                    return self._take_answer
                if any(each.is_over for each in self._transfers.values()):
                    return lambda: None
                self._changed.wait()
            return None

    def _send_chunk(self, outgoing: OutgoingTransfer) -> None:
        buffer = self._buffers[-1]
        try:
            memory = self._memory = self._memory or self._calls.memory()
            found = outgoing.next_chunk(memory, next(self._numbers), buffer)
        except TransferError as error:
            outgoing.verdict = outgoing.verdict or (TransferStatus.FAILED, str(error))
            self._let_go()  # the engine may have begun another life
            return
        if found is None:
            return
        chunk, data = found
        hasher = chunk.hasher()
        hasher.update(data.data)
        head = chunk.encode() + encode_checksum(hasher)
        outgoing.unanswered += 1
        self._sent.append(_Sent(chunk.number, outgoing, head, data, self._buffers.pop()))
        self._link_or_open().send(head, data.data)

    def _take_answer(self) -> None:
        first = self._sent[0]
        said = decode_answer(self._link_or_open().receive(ANSWER_BYTES))
        if said.number != first.number:
            raise ProtocolError(f"an answer for chunk {said.number}, not {first.number}")
        failed = TransferStatus.CORRUPT if said.is_corrupt else TransferStatus.FAILED
        is_failed = said.is_corrupt or bool(said.detail)
        self._settle(failed if is_failed else TransferStatus.OK, said.detail)
        self._may_redial = True

    def _settle(self, status: TransferStatus, detail: str) -> None:
        """The oldest chunk without an answer has one."""
        sent = self._sent.popleft()
        self._buffers.append(sent.buffer)
        sent.transfer.answered(len(sent.data), status, detail)

    def _reconnect(self, error: Exception) -> None:
        """Send again what has no answer, over a new connection; fail all transfers where that cannot be."""
        self._hang_up()
        may_redial, self._may_redial = self._may_redial and not isinstance(error, TimeoutError), False
        if may_redial and not self._is_closing:
            try:
                self._open()
                for each in self._sent:
                    self._link_or_open().send(each.head, each.data.data)
                return
            except (OSError, EOFError, ValueError, UnwelcomeError) as again:
                error = again
        self._hang_up()
        self._may_redial = True
        self._drop_sent(f"the connection ended: {error}")
        with self._changed:
            for outgoing in self._transfers.values():
                outgoing.verdict = outgoing.verdict or (TransferStatus.FAILED, f"the connection ended: {error}")

    def _open(self) -> None:
        link = self._calls.dial()
        try:
            link.send(self._greeting.encode())
            said = link.receive(len(WELCOME))
        except (OSError, EOFError):
            link.close()
            raise
        if said != WELCOME:
            link.close()
            raise UnwelcomeError("the peer refuses" if said == UNWELCOME else "no transfer helper answers there")
        with self._changed:
            self._link = link
            if self._is_closing:
                link.close()

    def _link_or_open(self) -> Link:
        if self._link is None:
            self._open()
        assert self._link is not None
        return self._link

    def _hang_up(self) -> None:
        with self._changed:
            link, self._link = self._link, None
        if link is not None:
            link.close()

    def _let_go(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()

    def _drop_sent(self, detail: str) -> None:
        while self._sent:
            self._settle(TransferStatus.FAILED, detail)

    def _answer_ended(self) -> None:
        with self._changed:
            over = [each for each in self._transfers.values() if each.is_over]
            for each in over:
                del self._transfers[each.transfer.ticket]
        for each in over:
            self._calls.ended(each.done(self._calls.clock()))
