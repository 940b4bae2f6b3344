"""One prefix of etcd, followed without gaps: first a snapshot, then every change once and in order.

After any disconnect the watch goes on behind the last revision seen. Where etcd cannot go on (the history was
compacted, or etcd came back with less than was seen), the watch starts over with a new snapshot. Knows nothing of what
the keys mean.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from dunlin.membership.client import EtcdClient
from dunlin.membership.errors import Compacted, EtcdError, EtcdUnavailable
from dunlin.membership.values import KeyValue, key_text
from dunlin.membership.watch_stream import WatchStream
from dunlin.v1 import etcd_pb2 as pb

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PutEvent:
    """A key was written."""

    item: KeyValue


@dataclass(frozen=True, slots=True)
class DeletedEvent:
    """A key was removed (by hand or with its lease) by write `mod_revision`."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class ResetEvent:
    """Everything under the prefix as of `revision`: forget what came before. The first event of every watch."""

    revision: int
    items: tuple[KeyValue, ...]


WatchEvent = PutEvent | DeletedEvent | ResetEvent


@dataclass(frozen=True, slots=True)
class WatchBackoff:
    """Seconds between attempts: doubles from `first_s` to `most_s` while they fail."""

    first_s: float = 0.05
    most_s: float = 1.0


class PrefixWatch:
    """Iterate it once: `async for event in PrefixWatch(client, prefix)`. Never ends and never raises an EtcdError.

    Between two resets no revision is missed and none comes twice. `endpoint` is the member that the open
    stream comes from, None while there is none.
    """

    def __init__(self, client: EtcdClient, prefix: str, backoff: WatchBackoff | None = None) -> None:
        self.endpoint: str | None = None
        self._client = client
        self._prefix = prefix
        self._backoff = backoff or WatchBackoff()
        self._next = 0  # the revision to go on from; 0: only a snapshot can tell

    @property
    def connected(self) -> bool:
        """Whether a stream is open right now."""
        return self.endpoint is not None

    async def __aiter__(self) -> AsyncIterator[WatchEvent]:
        delay_s = self._backoff.first_s
        while True:
            try:
                if self._next == 0:
                    yield await self._snapshot()
                async with aclosing(self._follow()) as changes:
                    async for change in changes:
                        delay_s = self._backoff.first_s
                        yield change
            except Compacted as compacted:
                _log.info("watch of %s starts over: %s", self._prefix, compacted)
                self._next = 0
            except EtcdError as error:
                _log.debug("watch of %s: %s; again in %.2f s", self._prefix, error, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, self._backoff.most_s)

    async def _snapshot(self) -> ResetEvent:
        snapshot = await self._client.get_prefix(self._prefix)
        self._next = snapshot.revision + 1
        return ResetEvent(snapshot.revision, snapshot.items)

    async def _follow(self) -> AsyncGenerator[PutEvent | DeletedEvent, None]:
        """Changes from `self._next` on, until the stream breaks. Raises EtcdError then."""
        connection = self._client.connection
        stream, revision = await WatchStream.open(connection, self._prefix, self._next)
        try:
            if revision < self._next - 1:
                await self._check_not_behind()
            self.endpoint = stream.endpoint
            while True:
                for event in self._changes(await stream.read()):
                    yield event
        except EtcdUnavailable:
            connection.rotate(stream.endpoint)
            raise
        finally:
            self.endpoint = None
            stream.close()

    async def _check_not_behind(self) -> None:
        # A member may lag and catch up. But an etcd that came back with less than we saw (wiped, restored from a
        # backup) would stay silent until it has written that much again, and those would be other events.
        newest = (await self._client.get_prefix(self._prefix)).revision
        if newest < self._next - 1:
            raise Compacted(f"etcd is at revision {newest}, but revision {self._next - 1} was seen: history was lost")

    def _changes(self, response: pb.WatchResponse) -> list[PutEvent | DeletedEvent]:
        # etcd sends all changes of one revision in one response, so the last one tells where to go on. The header's
        # revision does not: it may run ahead of changes that are still to come.
        fresh = [event for event in response.events if event.kv.mod_revision >= self._next]
        if fresh:
            self._next = fresh[-1].kv.mod_revision + 1
        return [_change(event) for event in fresh]


def _change(event: pb.Event) -> PutEvent | DeletedEvent:
    if event.type == pb.Event.DELETE:
        return DeletedEvent(key_text(event.kv.key), event.kv.mod_revision)
    return PutEvent(KeyValue.of(event.kv))
