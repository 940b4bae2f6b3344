"""Streams the host's recorded decisions to every joined monitor: batches, best effort, bounded."""

import asyncio
import logging
from collections import deque

from dunlin.messages.fleet import Reason, Reasons
from dunlin.runtime.core_host import CoreHost, SentDecision
from dunlin.wire.codec import CodecError, encode

_log = logging.getLogger(__name__)

_INTERVAL_S = 0.1
_BATCH = 256
_BATCH_BYTES = 4 << 20


class DecisionStreamer:
    """Sends the recorded decisions. While no monitor is joined none are taken: the host's ring keeps the newest."""

    def __init__(self, host: CoreHost) -> None:
        self._host = host
        self._taken: deque[SentDecision] = deque()
        self._lost = 0

    async def run(self) -> None:
        """Send a batch at intervals, until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.flush()

    def flush(self) -> None:
        """Send one batch, if there is a monitor and a recorded decision."""
        monitors = self._host.peers("monitor")
        if not monitors:
            return
        decisions, lost = self._host.drain(_BATCH - len(self._taken))
        self._taken += decisions
        self._lost += lost
        reasons = self._batch()
        if not reasons and not self._lost:
            return
        batch = Reasons(tuple(reasons), self._lost)
        self._lost = 0
        for monitor in monitors:
            self._host.send(monitor, batch)

    def _batch(self) -> list[Reason]:
        """The next reasons, as many as fit; the others wait for the next batch."""
        reasons: list[Reason] = []
        size_bytes = 0
        while self._taken:
            reason = self._reason(self._taken[0])
            if reason is None or len(reason.payload) > _BATCH_BYTES:
                self._lost += 1
            elif size_bytes + len(reason.payload) > _BATCH_BYTES:
                break
            else:
                size_bytes += len(reason.payload)
                reasons.append(reason)
            self._taken.popleft()
        return reasons

    def _reason(self, decision: SentDecision) -> Reason | None:
        kind = type(decision.message).__name__
        try:
            payload = encode(decision.message)
        except CodecError as error:
            _log.warning("a decision of type %s cannot be recorded: %s", kind, error)
            return None
        return Reason(decision.at_s, decision.sender, decision.to, kind, payload)
