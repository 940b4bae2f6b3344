"""An etcd for one election that a test plays itself: leases that never end, and a watch that tells what it is given."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from dunlin.membership.client import EtcdClient, Lease, TxnResult
from dunlin.membership.txn import Compare, Operation
from dunlin.membership.values import KeyValue, Snapshot
from dunlin.membership.watch import ResetEvent, WatchEvent

REVISION = 7
"""Of every write: the epoch of the first term."""


class ScriptedEtcd(EtcdClient):
    """Grants every lease and every candidacy. `told` are the events of all watches."""

    def __init__(self) -> None:
        super().__init__(["127.0.0.1:1"])
        self.told: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self.leases = 0

    async def authenticate(self) -> None:
        return None

    async def grant(self, ttl_s: int) -> Lease:
        self.leases += 1
        return Lease(self.leases, float(ttl_s))

    async def keep_alive(self, lease_id: int, timeout_s: float | None = None) -> float:
        return 600.0

    async def revoke(self, lease_id: int) -> None:
        return None

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        return TxnResult(True, REVISION, ())

    async def get_prefix(self, prefix: str) -> Snapshot:
        return Snapshot(REVISION, ())

    def show(self, prefix: str) -> None:
        """Tell the watches that the key of the newest lease is the oldest candidacy."""
        key = f"{prefix.rstrip('/')}/{self.leases:016x}"
        self.told.put_nowait(ResetEvent(REVISION, (KeyValue(key, b"one", REVISION, REVISION, self.leases),)))


class ScriptedWatch:
    """Takes the place of `election.PrefixWatch`."""

    def __init__(self, client: ScriptedEtcd, prefix: str) -> None:
        self._client = client

    async def __aiter__(self) -> AsyncIterator[WatchEvent]:
        while True:
            yield await self._client.told.get()
