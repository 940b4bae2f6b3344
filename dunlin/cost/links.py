"""What moves take, and the links of engines and nodes that moves share. Pure; times are seconds, sizes bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from dunlin.messages.types import TransferKind


@dataclass(frozen=True, slots=True)
class TransferModel:
    """The time to copy bytes over one kind of path: a fixed part and a bandwidth, and `far_byte_s` more for each byte
    beyond `near_bytes`: what does not stay in a cache is copied more slowly.
    """

    fixed_s: float
    bytes_per_s: float
    near_bytes: float = 0.0
    far_byte_s: float = 0.0

    def move_s(self, byte_count: int) -> float:
        """Seconds to copy `byte_count` bytes."""
        far_s = self.far_byte_s * max(0.0, byte_count - self.near_bytes)
        return self.fixed_s + byte_count / self.bytes_per_s + far_s


@dataclass(frozen=True, slots=True)
class TransferModels:
    """One `TransferModel` per kind of move, and one for kinds that were not measured."""

    default: TransferModel
    by_kind: Mapping[TransferKind, TransferModel] = field(default_factory=dict)

    def move_s(self, kind: TransferKind, byte_count: int) -> float:
        """Seconds to move `byte_count` bytes that way."""
        return self.by_kind.get(kind, self.default).move_s(byte_count)


@dataclass(frozen=True, slots=True)
class EngineLinks:
    """The links of one engine: bytes per second of each direction, of all its GPUs together; 0: without limit.

    `pcie` to the host, of which `switch` is what the `gpus_per_switch` GPUs at one PCIe switch share (0: none do);
    `nvlink` to engines of the same node, `nic` to those of others, and `nvlink_s` and `nic_s` until a message arrives
    there at least; `look`: at which it reads what a peer wrote.
    `host_busy_share`: the part of the unshared time of a copy to or from the host that steps lose to it;
    `send_byte_s`, `receive_byte_s`: the seconds that they lose to each byte for or from a peer. `is_duplex`: copies to
    and from the host go on at the same time.

    The defaults are of the CPU backend, whose engine copies with the threads that compute: two processes move 8 GB/s
    over shared memory and 2.7 GB/s over a socket (measured, docs/simulator.md); one that waits for a peer looks every
    50 µs.

    Raises:
        ValueError: a figure is negative, or there is no GPU.
    """

    pcie: float = 0.0
    nvlink: float = 8e9
    nic: float = 2.7e9
    nvlink_s: float = 50e-6
    nic_s: float = 100e-6
    look: float = 8e9
    switch: float = 0.0
    gpus: int = 1
    gpus_per_switch: int = 0
    host_busy_share: float = 1.0
    send_byte_s: float = 1 / 8e9
    receive_byte_s: float = 0.0
    is_duplex: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) >= (each.name == "gpus"):
                raise ValueError(f"{each.name} of an engine's links is {getattr(self, each.name)}")


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """What the engines of a node share: bytes per second of its memory, and of each direction of its own network card,
    over which kvstores exchange regions; 0: without limit.

    The defaults are of the CPU backend on one machine: memory as two threads copy it, the card a TCP socket over
    loopback, both measured (docs/simulator.md). Raises ValueError: one is negative.
    """

    memory: float = 38e9
    nic: float = 2.7e9

    def __post_init__(self) -> None:
        for name in ("memory", "nic"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: needs 0 or more")
