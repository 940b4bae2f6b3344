"""An etcd in memory with the calls that `JobStore` and `LeaseKeeper` need, and its watch, to break at will."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count

from dunlin.membership.client import EtcdClient, Lease, TxnResult
from dunlin.membership.errors import EtcdUnavailable, LeaseLost
from dunlin.membership.txn import Compare, CreatedAt, DeleteOp, GetOp, ModifiedAt, Operation, PutOp, ValueIs
from dunlin.membership.values import KeyValue, Snapshot, key_bytes
from dunlin.membership.watch import DeletedEvent, PutEvent, ResetEvent, WatchEvent
from services.dispatcher.batches.job_store import JOBS, JobStore


class MemoryJobStore(JobStore):
    """Jobs in a `MemoryEtcd`."""

    def __init__(self, etcd: "MemoryEtcd") -> None:
        super().__init__(etcd, retry_s=0.0)
        self._memory = etcd

    def watch(self) -> AsyncIterator[WatchEvent]:
        return self._memory.watch(JOBS)


class MemoryEtcd(EtcdClient):
    """`lose_answers`: so many of the next writes are carried out, and their answers lost."""

    def __init__(self) -> None:
        self.items: dict[str, KeyValue] = {}
        self.revision = 0
        self.leases: set[int] = set()
        self.lose_answers = 0
        self.transactions = 0
        self.changed = asyncio.Event()
        self.log: list[PutEvent | DeletedEvent] = []
        self._leases = count(1)

    async def get(self, key: str) -> KeyValue | None:
        key_bytes(key)  # some texts cannot be asked for
        return self.items.get(key)

    async def get_prefix(self, prefix: str) -> Snapshot:
        found = sorted(key for key in self.items if key.startswith(prefix))
        return Snapshot(self.revision, tuple(self.items[key] for key in found))

    async def put(self, key: str, value: bytes, lease_id: int = 0) -> int:
        self.revision += 1
        self._put(PutOp(key, value, lease_id))
        self._lose_answer()
        return self.revision

    async def delete(self, key: str) -> bool:
        self.revision += 1
        return self._delete(key)

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        holds = all(self._holds(one) for one in compares)
        self.revision += 1
        self.transactions += 1
        reads = tuple(found for one in (then if holds else otherwise) for found in self._do(one))
        self._lose_answer()
        return TxnResult(holds, self.revision, reads)

    async def grant(self, ttl_s: int) -> Lease:
        lease = next(self._leases)
        self.leases.add(lease)
        return Lease(lease, float(ttl_s))

    async def keep_alive(self, lease_id: int, timeout_s: float | None = None) -> float:
        if lease_id not in self.leases:
            raise LeaseLost("gone")
        return 10.0

    async def revoke(self, lease_id: int) -> None:
        self.expire(lease_id)

    def expire(self, lease_id: int) -> None:
        """The lease ends, with its keys."""
        self.leases.discard(lease_id)
        self.revision += 1
        for key in [key for key, item in self.items.items() if item.lease_id == lease_id]:
            self._delete(key)

    async def watch(self, prefix: str) -> AsyncIterator[WatchEvent]:
        """As `PrefixWatch`."""
        at = len(self.log)
        yield ResetEvent(self.revision, (await self.get_prefix(prefix)).items)
        while True:
            while at < len(self.log):
                event, at = self.log[at], at + 1
                if (event.item.key if isinstance(event, PutEvent) else event.key).startswith(prefix):
                    yield event
            self.changed.clear()
            await self.changed.wait()

    def _lose_answer(self) -> None:
        if self.lose_answers:
            self.lose_answers -= 1
            raise EtcdUnavailable("the answer is lost")

    def _holds(self, compare: Compare) -> bool:
        match compare:
            case CreatedAt(key, revision):
                return (self.items[key].create_revision if key in self.items else 0) == revision
            case ModifiedAt(key, revision):
                return (self.items[key].mod_revision if key in self.items else 0) == revision
            case ValueIs(key, value):
                return key in self.items and self.items[key].value == value
        raise AssertionError(compare)

    def _do(self, operation: Operation) -> list[tuple[KeyValue, ...]]:
        match operation:
            case PutOp():
                self._put(operation)
            case DeleteOp(key):
                self._delete(key)
            case GetOp(key):
                return [(self.items[key],) if key in self.items else ()]
        return []

    def _put(self, put: PutOp) -> None:
        assert not put.lease_id or put.lease_id in self.leases
        old = self.items.get(put.key)
        created = old.create_revision if old is not None else self.revision
        item = self.items[put.key] = KeyValue(put.key, put.value, created, self.revision, put.lease_id)
        self._tell(PutEvent(item))

    def _delete(self, key: str) -> bool:
        if self.items.pop(key, None) is None:
            return False
        self._tell(DeletedEvent(key, self.revision))
        return True

    def _tell(self, event: PutEvent | DeletedEvent) -> None:
        self.log.append(event)
        self.changed.set()
