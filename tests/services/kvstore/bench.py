"""A kvstore core and what its instances say to it, for tests with exact times."""

from typing import Any

from dunlin.effects import Address, Joined, Send
from dunlin.messages.membership import Member
from dunlin.messages.pool import (
    RegionReserved,
    ReserveRegion,
)
from dunlin.messages.types import HostRegion, Region
from services.kvstore.config import KvstoreConfig
from services.kvstore.core import KvstoreCore
from tests.settings import configured

ME = Address("kvstore", "kv", 3)
ETCD = Address("etcd", "")
WRITER = Address("instance", "i0", 10)
RESTARTED = Address("instance", "i0", 20)
OTHER = Address("instance", "i1", 11)
MONITOR = Address("monitor", "m", 5)
UNIT = 64


def make_core(**settings: Any) -> KvstoreCore:
    defaults: dict[str, Any] = {
        "tier_path": "/proc/1/fd/3",
        "tier__capacity_bytes": 4 * UNIT,
        "tier__alignment_bytes": UNIT,
        "node": "n",
    }
    return KvstoreCore(ME, configured(KvstoreConfig, **(defaults | settings)))


def joined(*peers: Address, **settings: Any) -> KvstoreCore:
    core = make_core(**settings)
    for peer in peers or (WRITER,):
        core.receive(0.0, peer, Joined())
    return core


def ask(ticket: int = 1, length_bytes: int = UNIT, **fields: Any) -> ReserveRegion:
    defaults: dict[str, Any] = {
        "dispatcher": Address("dispatcher", "d", 1),
        "request": 1,
        "attempt": 1,
        "region": Region(0, 2, 0, 8),
        "kv_dtype": "fp32",
        "weights_digest": "w",
    }
    return ReserveRegion(ticket=ticket, length_bytes=length_bytes, **(defaults | fields))


def reserve(core: KvstoreCore, writer: Address = WRITER, length_bytes: int = UNIT) -> HostRegion:
    (effect,) = core.receive(1.0, writer, ask(length_bytes=length_bytes))
    assert isinstance(effect, Send)
    assert isinstance(effect.message, RegionReserved)
    return effect.message.host


def member(address: Address, pid: int = 77, node: str = "n") -> Member:
    return Member(address, "127.0.0.1:1", node, pid)


def free_units(core: KvstoreCore) -> int:
    core.catalog.check_integrity()
    return core.catalog.allocator.free_bytes // UNIT
