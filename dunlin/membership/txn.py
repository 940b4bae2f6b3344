"""The parts of a transaction: comparisons and operations."""

from dataclasses import dataclass
from typing import Protocol

from dunlin.membership.values import key_bytes, prefix_end
from dunlin.v1 import etcd_pb2 as pb


class Compare(Protocol):
    """One condition of a transaction."""

    def encode(self) -> pb.Compare:
        """As etcd's message."""
        ...


class Operation(Protocol):
    """One read or write of a transaction."""

    def encode(self) -> pb.RequestOp:
        """As etcd's message."""
        ...


@dataclass(frozen=True, slots=True)
class CreatedAt:
    """The key was created by write `revision`; 0: the key does not exist."""

    key: str
    revision: int

    def encode(self) -> pb.Compare:
        return pb.Compare(
            result=pb.Compare.EQUAL,
            target=pb.Compare.CREATE,
            key=key_bytes(self.key),
            create_revision=self.revision,
        )


@dataclass(frozen=True, slots=True)
class ModifiedAt:
    """The key was last written by write `revision`; 0: the key does not exist."""

    key: str
    revision: int

    def encode(self) -> pb.Compare:
        return pb.Compare(
            result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key_bytes(self.key), mod_revision=self.revision
        )


@dataclass(frozen=True, slots=True)
class ValueIs:
    """The key exists and holds exactly `value`."""

    key: str
    value: bytes

    def encode(self) -> pb.Compare:
        return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.VALUE, key=key_bytes(self.key), value=self.value)


@dataclass(frozen=True, slots=True)
class PutOp:
    """Write `key`, bound to the lease if one is given."""

    key: str
    value: bytes
    lease_id: int = 0

    def encode(self) -> pb.RequestOp:
        return pb.RequestOp(request_put=pb.PutRequest(key=key_bytes(self.key), value=self.value, lease=self.lease_id))


@dataclass(frozen=True, slots=True)
class GetOp:
    """Read `key`, or every key that starts with it when `prefix` is set."""

    key: str
    prefix: bool = False

    def encode(self) -> pb.RequestOp:
        end = prefix_end(self.key) if self.prefix else b""
        return pb.RequestOp(request_range=pb.RangeRequest(key=key_bytes(self.key), range_end=end))


@dataclass(frozen=True, slots=True)
class DeleteOp:
    """Remove `key` if it is there."""

    key: str

    def encode(self) -> pb.RequestOp:
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key_bytes(self.key)))
