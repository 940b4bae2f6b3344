"""Sends regions of the host tier to one peer: one thread, chunk by chunk, the most urgent region first.

A region that a more urgent one overtakes waits on its own connection, and gets a chunk now and then, so that its
receiver does not take it for stuck. A kept connection that broke is opened again once; what fails then is reported, and
may be submitted again. Knows no core and no catalog; the bytes are sent as they are, and the receiver judges them.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dunlin.auth.tls_context import MakeContext
from dunlin.messages.types import Priority
from dunlin.transport.payload import TAKEN, PayloadError, RegionHeader
from dunlin.transport.sockets.blocking import receive_exactly
from dunlin.transport.sockets.connections import ConnectionPool

CHUNK_BYTES = 1 << 20
KEEP_ALIVES = 4
"""Chunks that an overtaken region gets in the time after which its receiver gives up."""

OnSent = Callable[[int, str], None]
"""Called once per parcel: its ticket, and the error (empty: the receiver has it)."""


@dataclass(frozen=True, slots=True)
class RegionSend:
    """`payload.length_bytes` from `offset_bytes` of the tier, for the receiver at `endpoint` ("host:port").

    `server_name` is the name in the certificate that the receiver must show, with TLS.
    """

    ticket: int
    endpoint: str
    server_name: str
    payload: RegionHeader
    offset_bytes: int


@dataclass(order=True, slots=True)
class _Queued:
    priority: int
    order: int
    parcel: RegionSend = field(compare=False)


class _RefusedError(Exception):
    """The receiver did not want it."""


class _UnderWay:
    """One parcel on its own connection. `sent_bytes` of it have gone; `last_s` is when."""

    def __init__(self, queued: _Queued, room: memoryview, pool: ConnectionPool) -> None:
        """Take a connection for it.

        :raises OSError, ValueError: its endpoint cannot be reached.
        :raises PayloadError: it has a header that cannot be encoded.
        """
        self.queued = queued
        self.sent_bytes = 0
        self.last_s = 0.0
        self._header = queued.parcel.payload.encode()
        self._room = room
        self._pool = pool
        self._stream, self._is_kept = pool.take(queued.parcel.endpoint, queued.parcel.server_name)

    def send_chunk(self) -> bool:
        """Send the next chunk, after the first also what comes before it; True when the receiver has it all.

        :raises OSError, EOFError: the connection ended.
        :raises _RefusedError: the receiver did not want it.
        """
        try:
            return self._send()
        except (OSError, EOFError):
            self._stream.close()
            if not self._is_kept:
                raise
        parcel = self.queued.parcel  # it may have ended long ago: once more over a new one
        self.sent_bytes, self._is_kept = 0, False
        self._stream = self._pool.connect(parcel.endpoint, parcel.server_name)
        return self._send()

    def close(self) -> None:
        self._stream.close()

    def _send(self) -> bool:
        parcel = self.queued.parcel
        if not self.sent_bytes:
            self._stream.sendall(self._header)
        start, left = parcel.offset_bytes + self.sent_bytes, parcel.payload.length_bytes - self.sent_bytes
        count = min(left, CHUNK_BYTES)
        self._stream.sendall(self._room[start : start + count])
        self.sent_bytes += count
        if count < left:
            return False
        if receive_exactly(self._stream, 1) != TAKEN:
            self._stream.close()
            raise _RefusedError(f"{parcel.endpoint} refused it")
        self._pool.keep(parcel.endpoint, self._stream)
        return True


class RegionSender:
    """Owns the thread, its queue and its connections. `sent` is called from that thread."""

    def __init__(
        self,
        room: memoryview,
        sent: OnSent,
        *,
        tls: MakeContext | None = None,
        most_waiting: int = 4096,
        stall_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._room = room
        self._sent = sent
        self._stall_s = stall_s
        self._clock = clock
        self._most_waiting = most_waiting
        self._pool = ConnectionPool(tls, stall_s)
        self._orders = itertools.count()
        self._changed = threading.Condition()
        self._waiting: list[_Queued] = []
        self._is_closing = False
        self._unanswered = 0
        self._under_way: dict[int, _UnderWay] = {}
        self._thread = threading.Thread(target=self._run, name="regions-out", daemon=True)
        self._thread.start()

    def submit(self, parcel: RegionSend, priority: Priority) -> bool:
        """Queue a parcel; False when too many wait."""
        with self._changed:
            if len(self._waiting) >= self._most_waiting:
                return False
            heapq.heappush(self._waiting, _Queued(priority, next(self._orders), parcel))
            self._unanswered += 1
            self._changed.notify()
        return True

    @property
    def is_idle(self) -> bool:
        """Whether every parcel was reported."""
        with self._changed:
            return not self._unanswered

    def stop(self) -> None:
        """Send no more after this chunk; returns at once."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()

    def close(self) -> None:
        """Finish the chunk that is being sent, and send no more."""
        self.stop()
        self._thread.join(2 * self._stall_s)
        for under_way in self._under_way.values():
            under_way.close()
        self._pool.close()

    def _run(self) -> None:
        while (step := self._next()) is not None:
            if isinstance(step, _UnderWay):
                self._advance(step)
            else:
                self._begin(step)

    def _next(self) -> _Queued | _UnderWay | None:
        """What to do now: begin a parcel or go on with one; None at the end.

        At most one parcel of each priority is under way.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing or self._waiting or self._under_way)
            if self._is_closing:
                return None
            oldest = min(self._under_way.values(), key=lambda each: each.last_s, default=None)
            if oldest is not None and self._clock() - oldest.last_s > self._stall_s / KEEP_ALIVES:
                return oldest
            urgent = min(self._under_way, default=None)
            if self._waiting and (urgent is None or self._waiting[0].priority < urgent):
                return heapq.heappop(self._waiting)
            assert urgent is not None
            return self._under_way[urgent]

    def _begin(self, queued: _Queued) -> None:
        parcel = queued.parcel
        try:
            under_way = _UnderWay(queued, self._room, self._pool)
        except PayloadError as error:
            self._report(parcel, str(error))
        except (OSError, ValueError) as error:
            for each in (queued, *self._take_waiting_for(parcel.endpoint)):
                self._report(each.parcel, f"{parcel.endpoint} cannot be reached: {error}")
        else:
            self._under_way[queued.priority] = under_way
            self._advance(under_way)

    def _take_waiting_for(self, endpoint: str) -> list[_Queued]:
        """Take the parcels for an endpoint out of the queue, in their order: each would wait for its connection for as
        long as the one before, and all others behind it.
        """
        with self._changed:
            found = sorted(each for each in self._waiting if each.parcel.endpoint == endpoint)
            self._waiting = [each for each in self._waiting if each.parcel.endpoint != endpoint]
            heapq.heapify(self._waiting)
        return found

    def _advance(self, under_way: _UnderWay) -> None:
        parcel = under_way.queued.parcel
        detail = ""
        try:
            if not under_way.send_chunk():
                under_way.last_s = self._clock()
                return
        except _RefusedError as error:
            detail = str(error)
        except (OSError, EOFError) as error:
            detail = f"{parcel.endpoint} ended the connection: {error}"
        del self._under_way[under_way.queued.priority]
        self._report(parcel, detail)

    def _report(self, parcel: RegionSend, detail: str) -> None:
        with self._changed:
            self._unanswered -= 1
        self._sent(parcel.ticket, detail)
