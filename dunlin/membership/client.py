"""An asyncio client of etcd's v3 API: keys, transactions, leases. `connection` is for watch streams.

Keys are text, values bytes. Knows nothing of members or leaders, and keeps no state but its connection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from dunlin.membership.auth import CallMetadata, EtcdUser
from dunlin.membership.connection import EtcdConnection, MakeCredentials, Timeouts
from dunlin.membership.errors import EtcdError, EtcdUnavailable, LeaseLost
from dunlin.membership.txn import Compare, Operation
from dunlin.membership.values import KeyValue, Snapshot, key_bytes, prefix_end
from dunlin.v1 import etcd_pb2 as pb

R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease just granted: etcd forgets it `ttl_s` seconds after the last sign of life. The TTL is etcd's choice."""

    lease_id: int
    ttl_s: float


@dataclass(frozen=True, slots=True)
class TxnResult:
    """What a transaction did: `reads` holds one tuple of items per read operation, in order."""

    succeeded: bool
    revision: int
    reads: tuple[tuple[KeyValue, ...], ...]


@dataclass(frozen=True, slots=True)
class EtcdStatus:
    """One etcd member's word about itself. `leader` is a member too; 0 means that it knows of none."""

    version: str
    revision: int
    leader: int
    member: int


class EtcdClient:
    """Calls to one etcd cluster.

    Every method raises EtcdUnavailable when no endpoint answers in time, another EtcdError when etcd refuses. A read
    moves on to the next endpoint by itself. A write does so only while it surely was not sent: after EtcdUnavailable
    it may have happened.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeouts: Timeouts | None = None,
        credentials: MakeCredentials | None = None,
        user: EtcdUser | None = None,
    ) -> None:
        self.connection = EtcdConnection(endpoints, timeouts or Timeouts(), credentials, user)

    async def close(self) -> None:
        """Close the connection. End the tasks that use the client first."""
        await self.connection.close()

    async def authenticate(self) -> None:
        """Have a token for the calls to come, if they are made as a user."""

        async def attempt(channel: grpc.aio.Channel, metadata: CallMetadata) -> None:
            """Nothing more than a connection and a token is wanted."""

        await self.connection.call(attempt, repeatable=True)

    async def get(self, key: str) -> KeyValue | None:
        """The newest value of `key`, as of a majority of the cluster; None when there is none."""
        response = await self._range(pb.RangeRequest(key=key_bytes(key)))
        return KeyValue.of(response.kvs[0]) if response.kvs else None

    async def get_prefix(self, prefix: str) -> Snapshot:
        """All keys that start with `prefix`, in order of keys, as of one revision."""
        response = await self._range(pb.RangeRequest(key=key_bytes(prefix), range_end=prefix_end(prefix)))
        return Snapshot(response.header.revision, tuple(KeyValue.of(kv) for kv in response.kvs))

    async def put(self, key: str, value: bytes, lease_id: int = 0) -> int:
        """Write `key` (bound to the lease, if one is given); returns the revision of the write."""
        request = pb.PutRequest(key=key_bytes(key), value=value, lease=lease_id)
        return (await self._unary("KV/Put", request, pb.PutResponse)).header.revision

    async def delete(self, key: str) -> bool:
        """Remove `key`; returns whether it was there."""
        request = pb.DeleteRangeRequest(key=key_bytes(key))
        return (await self._unary("KV/DeleteRange", request, pb.DeleteRangeResponse)).deleted > 0

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Do `then` if every comparison holds, else `otherwise`, at one revision."""
        request = pb.TxnRequest(
            compare=[compare.encode() for compare in compares],
            success=[operation.encode() for operation in then],
            failure=[operation.encode() for operation in otherwise],
        )
        response = await self._unary("KV/Txn", request, pb.TxnResponse)
        ranges = [part.response_range for part in response.responses if part.HasField("response_range")]
        reads = tuple(tuple(KeyValue.of(kv) for kv in one.kvs) for one in ranges)
        return TxnResult(response.succeeded, response.header.revision, reads)

    async def compact(self, revision: int) -> None:
        """Forget the history below `revision`: watches that start below it end with a reset."""
        request = pb.CompactionRequest(revision=revision, physical=True)
        await self._unary("KV/Compact", request, pb.CompactionResponse)

    async def grant(self, ttl_s: int) -> Lease:
        """A new lease; etcd raises `ttl_s` to its own minimum (2 s by default)."""
        response = await self._unary("Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=ttl_s), pb.LeaseGrantResponse)
        if response.error:
            raise EtcdError(f"etcd refused a lease of {ttl_s} s: {response.error}")
        return Lease(response.ID, float(response.TTL))

    async def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys. Raises LeaseLost when it is gone already."""
        await self._unary("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=lease_id), pb.LeaseRevokeResponse)

    async def keep_alive(self, lease_id: int, timeout_s: float | None = None) -> float:
        """Extend a lease to its full TTL, which is returned in seconds. Raises LeaseLost when it is gone."""
        deadline_s = timeout_s or self.connection.timeouts.call_s

        async def attempt(channel: grpc.aio.Channel, metadata: CallMetadata) -> float:
            return await _extend(channel, metadata, lease_id, deadline_s)

        return await self.connection.call(attempt, repeatable=True)

    async def time_to_live(self, lease_id: int) -> float:
        """Seconds that the lease has left. Raises LeaseLost when it is gone."""
        request = pb.LeaseTimeToLiveRequest(ID=lease_id)
        response = await self._unary("Lease/LeaseTimeToLive", request, pb.LeaseTimeToLiveResponse, repeatable=True)
        if response.TTL < 0:
            raise LeaseLost(f"lease {lease_id:x} does not exist")
        return float(response.TTL)

    async def status(self) -> EtcdStatus:
        """What the first reachable endpoint says of itself."""
        response = await self._unary("Maintenance/Status", pb.StatusRequest(), pb.StatusResponse, repeatable=True)
        header = response.header
        return EtcdStatus(response.version, header.revision, response.leader, header.member_id)

    async def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        return await self._unary("KV/Range", request, pb.RangeResponse, repeatable=True)

    async def _unary(self, method: str, request: Message, response: type[R], *, repeatable: bool = False) -> R:
        timeout_s = self.connection.timeouts.call_s

        async def attempt(channel: grpc.aio.Channel, metadata: CallMetadata) -> R:
            stub = channel.unary_unary(
                f"/etcdserverpb.{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )
            return await stub(request, timeout=timeout_s, metadata=metadata)

        return await self.connection.call(attempt, repeatable=repeatable)


async def _extend(channel: grpc.aio.Channel, metadata: CallMetadata, lease_id: int, timeout_s: float) -> float:
    # One short stream per sign of life: a second or so apart, simple, and it fails over like any call.
    call = channel.stream_stream(
        "/etcdserverpb.Lease/LeaseKeepAlive",
        request_serializer=pb.LeaseKeepAliveRequest.SerializeToString,
        response_deserializer=pb.LeaseKeepAliveResponse.FromString,
    )(timeout=timeout_s, metadata=metadata)
    try:
        await call.write(pb.LeaseKeepAliveRequest(ID=lease_id))
        response = await call.read()
    finally:
        call.cancel()
    if not isinstance(response, pb.LeaseKeepAliveResponse):
        raise EtcdUnavailable(f"etcd ended the keep-alive of lease {lease_id:x}")
    if response.TTL <= 0:
        raise LeaseLost(f"lease {lease_id:x} has expired")
    return float(response.TTL)
