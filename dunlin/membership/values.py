"""What etcd stores, as plain values: keys are text, revisions count etcd's writes."""

from dataclasses import dataclass

from dunlin.v1 import etcd_pb2 as pb


def key_bytes(key: str) -> bytes:
    """A key as etcd wants it; keys that other programs wrote survive the way there and back whatever their bytes."""
    return key.encode("utf-8", "surrogateescape")


def key_text(key: bytes) -> str:
    """The inverse of `key_bytes`."""
    return key.decode("utf-8", "surrogateescape")


def prefix_end(prefix: str) -> bytes:
    """The first key after all keys that start with `prefix`: etcd names a prefix by such a half-open range."""
    trimmed = key_bytes(prefix).rstrip(b"\xff")
    if not trimmed:
        return b"\0"  # etcd's word for "no upper end"
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key: `create_revision` is the write that made it, `mod_revision` the last one, `lease_id` 0 means none."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease_id: int = 0

    @staticmethod
    def of(kv: pb.KeyValue) -> "KeyValue":
        """Out of etcd's message."""
        return KeyValue(key_text(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.lease)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consistent view: everything as of `revision`, ordered by key."""

    revision: int
    items: tuple[KeyValue, ...]
