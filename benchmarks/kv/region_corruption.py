"""Damage regions in every way, and read each one: `python -m benchmarks.kv.region_corruption [--count 100000]`.

Bits flip, tails are missing, two regions change places (bytes alone, names alone, or whole regions with their
checksums), and what is asked for is another layer range, span or chain than what lies there. A read counts as
undetected when it says OK and the slab holds anything but the region that was asked for. Frames between nodes are
damaged too, on real connections.
"""

import contextlib
import mmap
import os
import queue
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import xxhash

from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult
from dunlin.effects import Address, Joined
from dunlin.engine.transfer.copy_planner import CopyPlanner
from dunlin.engine.transfer.host_tier import HostMapping
from dunlin.engine.transfer.peer_arenas import PeerArenas
from dunlin.engine.transfer.slab import KvSlab
from dunlin.engine.transfer.transfer_queue import TransferQueue
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.kv.region_identity import signed_digest
from dunlin.messages.engine import MapHost, Transfer, TransferDone
from dunlin.messages.pool import CommitRegion, ReleaseRegion, ReserveRegion
from dunlin.messages.types import HostRegion, Region, TransferKind, TransferStatus, i64
from dunlin.transport.payload import TAKEN, RegionHeader
from dunlin.transport.sockets.receiver import OnReceived, RegionReceiver
from services.kvstore.config import KvstoreConfig, TierConfig
from services.kvstore.core import KvstoreCore

LAYERS, KV_HEADS, HEAD_DIM, TOKENS, REGIONS = 2, 2, 8, 16, 16
SLOTS = REGIONS * TOKENS
SLOT_BYTES = 2 * KV_HEADS * HEAD_DIM * 4
LENGTH = LAYERS * TOKENS * SLOT_BYTES


@dataclass(frozen=True, slots=True)
class StoredRegion:
    """A region as its reader knows it."""

    region: Region
    host: HostRegion
    chain: bytes


class MoveEngine:
    """An engine's moves over a slab and a tier, without its model."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.path = folder / "tier"
        self.path.write_bytes(bytes(REGIONS * LENGTH))
        generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
        shape = (2 * SLOTS, 2, KV_HEADS, HEAD_DIM)
        self.kv = [torch.randn(shape, generator=generator) for _ in range(LAYERS)]
        tier = HostMapping()
        tier.map(MapHost(str(self.path), REGIONS * LENGTH, 1))
        slab = KvSlab(self.kv, [2 * SLOTS] * LAYERS)
        planner = CopyPlanner(slab, TransitRooms(1), tier, PeerArenas())
        self._transfers = TransferQueue(planner, time.perf_counter)
        self._moves = 0

    def write(self, number: int) -> StoredRegion:
        """Copy 16 tokens out."""
        region = Region(0, LAYERS, number * TOKENS, (number + 1) * TOKENS)
        host = HostRegion(number + 1, 1, number * LENGTH, LENGTH)
        chain = number.to_bytes(16, "little")
        done = self.move(TransferKind.SLAB_TO_HOST, region, host, chain, region.start)
        return StoredRegion(region, replace(host, checksum=done.checksum), chain)

    def read(self, kept: StoredRegion) -> TransferDone:
        """Copy it into unused slots."""
        for layer in self.kv:
            layer[SLOTS:].zero_()
        return self.move(TransferKind.HOST_TO_SLAB, kept.region, kept.host, kept.chain, SLOTS)

    def holds(self, wanted: StoredRegion) -> bool:
        """Whether what was read is what was written for that region."""
        start, stop = wanted.region.start, wanted.region.stop
        return all(torch.equal(layer[SLOTS : SLOTS + TOKENS], layer[start:stop]) for layer in self.kv)

    def move(self, kind: TransferKind, region: Region, host: HostRegion, chain: bytes, slot: int) -> TransferDone:
        """One move to its end."""
        self._moves += 1
        extents = (i64([slot]), i64([region.stop - region.start]))
        self._transfers.add(Transfer(self._moves, kind, 1, region, *extents, host, chain=chain))
        while not (ended := self._transfers.work_idle()):
            pass
        return ended[0].done


class RegionDamage:
    """Each way returns what the reader asks for then; `undo` restores the bytes."""

    def __init__(self, memory: memoryview, kept: list[StoredRegion], draw: random.Random) -> None:
        self._memory = memory
        self._kept = kept
        self._draw = draw
        self._saved: list[tuple[int, bytes]] = []
        self.ways: dict[str, Callable[[StoredRegion], StoredRegion]] = {
            "bits flipped": self._flip,
            "tail missing": self._truncate,
            "room too short": self._shorten,
            "bytes of two regions exchanged": self._exchange_bytes,
            "whole region of another, with its checksum": self._take_other,
            "checksums exchanged": self._exchange_checksums,
            "handle of another": self._take_handle,
            "another span, chain or layers asked for": self._misname,
        }

    def undo(self) -> None:
        """As it was."""
        for offset, content in self._saved:
            self._memory[offset : offset + len(content)] = content
        self._saved.clear()

    def _save(self, kept: StoredRegion) -> int:
        at = kept.host.offset_bytes
        self._saved.append((at, bytes(self._memory[at : at + LENGTH])))
        return at

    def _other(self, kept: StoredRegion) -> StoredRegion:
        return self._draw.choice([one for one in self._kept if one is not kept])

    def _flip(self, kept: StoredRegion) -> StoredRegion:
        at = self._save(kept)
        for bit in self._draw.sample(range(8 * LENGTH), self._draw.choice((1, 1, 2, 17))):
            self._memory[at + bit // 8] ^= 1 << bit % 8
        return kept

    def _truncate(self, kept: StoredRegion) -> StoredRegion:
        at = self._save(kept)
        start = self._draw.randrange(LENGTH)
        self._memory[at + start : at + LENGTH] = bytes(LENGTH - start)
        return kept

    def _shorten(self, kept: StoredRegion) -> StoredRegion:
        how = self._draw.choice(("length", "end of the tier", "before it"))
        offset, length = kept.host.offset_bytes, LENGTH
        if how == "length":
            length = self._draw.randrange(LENGTH)
        else:
            offset = REGIONS * LENGTH - self._draw.randrange(LENGTH) if how != "before it" else -offset - 1
        return replace(kept, host=replace(kept.host, offset_bytes=offset, length_bytes=length))

    def _exchange_bytes(self, kept: StoredRegion) -> StoredRegion:
        other = self._other(kept)
        here, there = self._save(kept), self._save(other)
        (_, mine), (_, theirs) = self._saved[-2:]
        self._memory[here : here + LENGTH], self._memory[there : there + LENGTH] = theirs, mine
        return kept

    def _take_other(self, kept: StoredRegion) -> StoredRegion:
        return replace(kept, host=self._other(kept).host)

    def _exchange_checksums(self, kept: StoredRegion) -> StoredRegion:
        return replace(kept, host=replace(kept.host, checksum=self._other(kept).host.checksum))

    def _take_handle(self, kept: StoredRegion) -> StoredRegion:
        other = self._other(kept).host
        return replace(kept, host=replace(other, checksum=kept.host.checksum))

    def _misname(self, kept: StoredRegion) -> StoredRegion:
        region = kept.region
        shift = self._draw.randrange(1, 99)
        return self._draw.choice(
            (
                replace(kept, region=replace(region, start=region.start + shift, stop=region.stop + shift)),
                replace(kept, region=replace(region, layer_stop=1)),
                replace(kept, chain=self._draw.randbytes(16)),
                replace(kept, chain=kept.chain[:-1]),
            )
        )


def names(count: int, draw: random.Random) -> tuple[int, int]:
    """Wrong handles and generations said to a kvstore: how many it took for right, and how many crashed it."""
    writer, other = Address("instance", "a", 1), Address("instance", "b", 2)
    core = KvstoreCore(Address("kvstore", "k", 1), KvstoreConfig("/tier", tier=TierConfig(1 << 20)))
    asked = ReserveRegion(1, Address("dispatcher", "d", 1), 1, 1, Region(0, 1, 0, 1), 4096, "float32", "w", key="k")
    for one in (writer, other):
        core.receive(0.0, one, Joined())
    for _ in range(REGIONS):
        core.receive(0.0, writer, asked)
    for entry in core.catalog.entries_of(writer):
        core.receive(0.0, writer, CommitRegion(entry.host.handle, entry.host.generation, 7))
    taken = crashed = 0
    before = core.catalog.entries_of(writer)
    for _ in range(count):
        handle, generation = draw.randrange(-1, REGIONS + 2), draw.choice((-1, 0, 1, 2, 1 << 40))
        sender = other if generation == 1 and 0 < handle <= REGIONS else draw.choice((writer, other))
        message = draw.choice((ReleaseRegion(handle, generation), CommitRegion(handle, generation, 8)))
        stale = core.stale_total
        try:
            core.receive(0.0, sender, message)
        except Exception:
            crashed += 1
        taken += core.stale_total != stale + 1
    taken += core.catalog.entries_of(writer) != before
    return taken, crashed


class TransportRig:
    """Two tiers and the transport between them: frames are damaged on the way."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._source = draw.randbytes(LENGTH)
        self._target = bytearray(LENGTH)
        self._news: queue.Queue[str] = queue.Queue()
        told: OnReceived = lambda handle, generation, detail: self._news.put(detail)  # noqa: E731
        self._receiver = RegionReceiver(memoryview(self._target), told, stall_s=1.0)

    def close(self) -> None:
        """End the threads."""
        self._receiver.close()

    def damaged(self) -> bool:
        """Send one frame with flipped bits, or cut short; whether it was noticed."""
        frame, token = self._frame()
        for bit in self._draw.sample(range(8 * len(frame)), self._draw.choice((0, 1, 2, 9))):
            frame[bit // 8] ^= 1 << bit % 8
        sent = bytes(frame) if self._draw.random() < 0.7 else bytes(frame[: self._draw.randrange(len(frame))])
        is_whole = sent == self._whole
        self._target[:] = bytes(LENGTH)
        answer = self._say(sent)
        self._receiver.abandon(token)
        return answer != TAKEN or (is_whole and self._target == self._source)

    def works(self) -> bool:
        """Whether a whole frame is still taken."""
        frame, _ = self._frame()
        return self._say(bytes(frame)) == TAKEN

    def _frame(self) -> tuple[bytearray, bytes]:
        chain = self._draw.randbytes(16)
        plain = RegionHeader(b"", 1, 1, Region(0, LAYERS, 0, TOKENS), "float32", chain, LENGTH, 0)
        plain = replace(plain, checksum=signed_digest(xxhash.xxh3_64_intdigest(plain.identity + self._source)))
        token = self._receiver.expect(plain, 0)
        self._whole = replace(plain, token=token).encode() + self._source
        return bytearray(self._whole), token

    def _say(self, data: bytes) -> bytes:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._receiver.port), 5) as stream:
            stream.sendall(data)
            stream.shutdown(socket.SHUT_WR)
            return stream.recv(1)
        return b""


def frames(count: int, draw: random.Random) -> tuple[int, int]:
    """How many of `count` damaged frames went undetected, and how often the receiver stopped to work."""
    wire = TransportRig(draw)
    try:
        undetected = sum(not wire.damaged() for _ in range(count))
        return undetected, int(not wire.works())
    finally:
        wire.close()


def run(count: int, seed: int = 1) -> BenchmarkResult:
    """`count` damaged reads, names and frames, as many of each kind."""
    outcome, draw = BenchmarkResult(f"corruption: {count} damaged regions"), random.Random(seed)
    undetected = crashes = 0
    with tempfile.TemporaryDirectory() as folder:
        engine = MoveEngine(Path(folder), draw)
        kept = [engine.write(number) for number in range(REGIONS)]
        fd = os.open(engine.path, os.O_RDWR)
        try:
            with mmap.mmap(fd, 0) as mapped, memoryview(mapped) as memory:
                damage = RegionDamage(memory, kept, draw)
                each = -(-count // (len(damage.ways) + 2))
                for way, do in damage.ways.items():
                    caught = _caught(engine, kept, do, damage, each, draw)
                    outcome.figures[f"{way}: detected of {each}"] = caught[0]
                    undetected += each - caught[0] - caught[1]
                    crashes += caught[1]
                for one in kept:
                    outcome.expect(engine.read(one).status is TransferStatus.OK, "an undamaged region is refused")
        finally:
            os.close(fd)
    taken, crashed = names(each, draw)
    outcome.figures[f"wrong names at the kvstore: refused of {each}"] = each - taken - crashed
    passed, stopped = frames(each, draw)
    outcome.figures[f"frames between nodes damaged or cut: detected of {each}"] = each - passed
    undetected, crashes = undetected + taken + passed, crashes + crashed + stopped
    outcome.figures |= {"undetected": undetected, "crashes": crashes}
    outcome.expect(undetected == 0, f"{undetected} went undetected")
    outcome.expect(crashes == 0, f"{crashes} crashes")
    return outcome


def _caught(
    engine: MoveEngine,
    kept: list[StoredRegion],
    do: Callable[[StoredRegion], StoredRegion],
    damage: RegionDamage,
    count: int,
    draw: random.Random,
) -> tuple[int, int]:
    """How many of `count` reads were caught, or did no harm, and how many raised."""
    caught = crashed = 0
    for _ in range(count):
        victim = draw.choice(kept)
        try:
            asked = do(victim)
            done = engine.read(asked)
            caught += done.status is not TransferStatus.OK or (asked == victim and engine.holds(victim))
        except Exception:
            crashed += 1
        damage.undo()
    return caught, crashed


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--count", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args(argv)
    torch.set_num_threads(1)
    return report.finish(run(given.count, given.seed), given.json)


if __name__ == "__main__":
    sys.exit(main())
