"""KV from one engine process straight into another's slots: `python -m benchmarks.engine.peer_transfer [--rounds 9]`.

First GB/s slab to slab, sent and verified by the receiver, against the machine's plain copy between memory that is
mapped in both, in turns; the first round touches the receiver's pages, and is told apart. Then what a prefill costs
while everything that it computes is sent, against the same prefill alone, in turns. Wall-clock and this process's CPU
time: other processes stretch the former.
"""

import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.effects import Address
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import load_model
from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.copy_planner import CopyPlanner
from dunlin.engine.transfer.host_tier import HostMapping
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.peer_arenas import PeerArenas
from dunlin.engine.transfer.slab import KvSlab
from dunlin.engine.transfer.transfer_queue import TransferQueue
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import Close, Meet, Met, Open, Step, StepDone, Transfer, TransferDone
from dunlin.messages.types import Region, SamplingParams, TransferKind, TransferStatus, i8, i32, i64

SHARE_AT_LEAST = 0.5
COST_AT_MOST = 0.10
SHAPE = CheckpointShape(8, 512, 8, 4, 64, 1408, 8192, 65536, dtype="bfloat16")
"""32 million parameters: 8 KiB of KV per token."""
SLOT_BYTES = 2 * SHAPE.kv_heads * SHAPE.head_dim * 2
SLOTS = 8192
REGION_TOKENS = 1024
CHUNK_TOKENS = 512
RECEIVER = Address("engine", "receiver")


class SlabProcess:
    """A slab in a memory file, and its transfers."""

    def __init__(self) -> None:
        self.fd, self.page_fd = os.memfd_create("dunlin-bench-arena"), os.memfd_create("dunlin-bench-page")
        layer_bytes = SLOTS * SLOT_BYTES
        os.ftruncate(self.fd, SHAPE.layers * layer_bytes)
        self.memory = np.frombuffer(mmap.mmap(self.fd, SHAPE.layers * layer_bytes), dtype=np.uint8)
        self.memory[:] = 1
        flat = torch.from_numpy(self.memory).view(torch.bfloat16)
        kv = list(flat.view(SHAPE.layers, SLOTS, 2, SHAPE.kv_heads, SHAPE.head_dim))
        self.slab = KvSlab(kv, [SLOTS] * SHAPE.layers)
        self.peers = PeerArenas()
        self.access = PeerAccess(self.page_fd)
        runs = {layer: [(layer * layer_bytes, layer_bytes)] for layer in range(SHAPE.layers)}
        self.access.publish(self.fd, self.slab, runs)
        planner = CopyPlanner(self.slab, TransitRooms(1), HostMapping(), self.peers)
        self.queue = TransferQueue(planner, time.perf_counter)

    def finish(self, transfer: Transfer) -> TransferDone:
        """One transfer, to its end."""
        self.queue.add(transfer)
        while not (ended := self.queue.work_idle()):
            pass
        return ended[0].done


def transfer_of(ticket: int, start: int, stop: int, kind: TransferKind, **more: Any) -> Transfer:
    """Tokens from `start` in the slots of the same numbers, here and there."""
    extents = i64([start]), i64([stop - start])
    there: dict[str, Any] = {"peer_extent_start": extents[0], "peer_extent_length": extents[1], "peer": RECEIVER}
    region = Region(0, SHAPE.layers, start, stop)
    return Transfer(ticket, kind, 0, region, extents[0], extents[1], **there, **more)


def receive() -> None:
    """The receiver's process: says how it is met, and verifies what it is told of."""
    process = SlabProcess()
    print(process.access.agent.hex(), flush=True)
    for line in sys.stdin:
        start, stop, checksum = json.loads(line)
        done = process.finish(transfer_of(1, start, stop, TransferKind.PEER_TO_SLAB, checksum=checksum))
        print(int(done.status), flush=True)


class Receiver:
    """The other process, as the sender sees it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self.agent = bytes.fromhex(self._stdout.readline())
        self._asked = 0

    def verify(self, start: int, stop: int, checksum: int) -> None:
        """Have it look at its slots; `settle` waits for the answer."""
        print(json.dumps([start, stop, checksum]), file=self._stdin, flush=True)
        self._asked += 1

    def settle(self) -> None:
        """Wait for all answers."""
        for _ in range(self._asked):
            status = TransferStatus(int(self._stdout.readline()))
            assert status is TransferStatus.OK, status
        self._asked = 0


@contextmanager
def receiver_process() -> Iterator[Receiver]:
    """Start it; it ends with its standard input."""
    command = [sys.executable, "-m", "benchmarks.engine.peer_transfer", "--receive"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Receiver(process)
        process.kill()


@dataclass
class Timing:
    """Seconds of one piece of work, by the clock on the wall and by this process's."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def measure(self, work: Callable[[], None]) -> None:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        work()
        self.wall_s.append(time.perf_counter() - wall_s)
        self.cpu_s.append(time.process_time() - cpu_s)


def measure_bandwidth(rounds: int, outcome: BenchmarkResult) -> None:
    """Slab to slab against a plain copy of as many bytes, in turns."""
    process, size = SlabProcess(), SHAPE.layers * SLOTS * SLOT_BYTES
    target = SlabProcess().memory
    plain, sent, verified_s = Timing(), Timing(), list[float]()
    with receiver_process() as receiver:
        process.peers.meet(RECEIVER, receiver.agent)
        for turn in range(rounds + 1):
            plain.measure(lambda: copy_plainly(process.memory, target))
            began_s = time.perf_counter()
            sent.measure(lambda: send_all(process, receiver))
            receiver.settle()
            verified_s.append(time.perf_counter() - began_s)
            say(f"round {turn}: plain {plain.wall_s[-1]:.4f} s, sent {sent.wall_s[-1]:.4f}, all {verified_s[-1]:.4f}")
    figures = outcome.figures
    figures["plain copy, GB/s (wall, CPU)"] = rate(size, plain.wall_s[1:]), rate(size, plain.cpu_s[1:])
    figures["sent into mapped pages, GB/s (wall, CPU)"] = rate(size, sent.wall_s[1:]), rate(size, sent.cpu_s[1:])
    figures["sent and verified, GB/s (wall)"] = rate(size, verified_s[1:])
    figures["the first time, GB/s (wall, CPU)"] = size / sent.wall_s[0] / 1e9, size / sent.cpu_s[0] / 1e9
    shares = [before / after for before, after in zip(plain.wall_s[1:], sent.wall_s[1:], strict=True)]
    figures["share of the plain copy, by rounds (wall)"] = shares
    cpu_share = median(plain.cpu_s[1:]) / median(sent.cpu_s[1:])
    figures["share of the plain copy, median (wall, CPU)"] = median(shares), cpu_share
    outcome.expect(median(shares) >= SHARE_AT_LEAST, f"only {median(shares):.0%} of the plain copy")


def copy_plainly(source: "np.ndarray[Any, Any]", target: "np.ndarray[Any, Any]") -> None:
    for at in range(0, len(source), 1 << 23):
        np.copyto(target[at : at + (1 << 23)], source[at : at + (1 << 23)])


def send_all(process: SlabProcess, receiver: Receiver) -> None:
    for start in range(0, SLOTS, REGION_TOKENS):
        stop = start + REGION_TOKENS
        done = process.finish(transfer_of(1, start, stop, TransferKind.SLAB_TO_PEER))
        assert done.status is TransferStatus.OK, done
        receiver.verify(start, stop, done.checksum)


def rate(size: int, seconds: list[float]) -> float:
    return size / median(seconds) / 1e9


class Prefill:
    """One engine without its process, that computes a prompt in chunks, and sends each while it computes the next."""

    def __init__(self, folder: Path, receiver: Receiver, tokens: int) -> None:
        write_random_checkpoint(folder, "llama", SHAPE)
        kv_bytes = SLOTS * SHAPE.layers * SLOT_BYTES
        fd = os.memfd_create("dunlin-bench-arena")
        loaded = load_model(folder, "bfloat16", kv_bytes, numerics.fast_numerics(), fd)
        self._runner = EngineRunner(loaded.decoder, loaded.slots, time.perf_counter)
        self._receiver = receiver
        self._tokens = tokens
        self._number = 0
        (met,) = self._runner.receive(Meet(RECEIVER, receiver.agent))
        assert met == Met(RECEIVER), met

    def run(self, sends: bool) -> None:
        """From nothing to the end of the last chunk, and of what is sent."""
        self._number += 1
        sequence = self._number
        tokens = i32([(7 * i + i * i) % SHAPE.vocab for i in range(self._tokens)])
        self._runner.receive(Open(sequence, tokens, self._tokens, 8, SamplingParams(temperature=0.0)))
        for start in range(0, self._tokens, CHUNK_TOKENS):
            self._chunk(sequence, start, sends)
        events: list[Any] = []
        while self._runner.busy:
            events += self._runner.work(lambda: None)
        assert sum(isinstance(event, StepDone) for event in events) == self._tokens // CHUNK_TOKENS
        sent = [event for event in events if isinstance(event, TransferDone)]
        assert all(event.status is TransferStatus.OK for event in sent), sent
        assert len(sent) == sends * self._tokens // CHUNK_TOKENS
        self._runner.receive(Close(sequence))

    def _chunk(self, sequence: int, start: int, sends: bool) -> None:
        self._number += 1
        stop = start + CHUNK_TOKENS
        columns = i64([sequence]), i64([start]), i64([stop]), i8([0])
        self._runner.receive(Step(self._number, *columns, i32([0]), i64([start]), i64([CHUNK_TOKENS])))
        if sends:
            kind = TransferKind.SLAB_TO_PEER
            self._runner.receive(transfer_of(self._number, start, stop, kind, step=self._number))


@torch.inference_mode()
def measure_cost(rounds: int, tokens: int, outcome: BenchmarkResult) -> None:
    """A prefill that is sent while it computes, against the same alone, in turns."""
    torch.set_num_threads(1)
    with receiver_process() as receiver, tempfile.TemporaryDirectory() as folder:
        compare_prefills(Prefill(Path(folder) / "model", receiver, tokens).run, rounds, tokens, outcome)


def compare_prefills(prefill: Callable[[bool], None], rounds: int, tokens: int, outcome: BenchmarkResult) -> None:
    """Run `prefill(sends)` with and without sending, in turns, and note what it costs; the first round is no figure."""
    alone, sending = Timing(), Timing()
    for turn in range(rounds + 1):
        pair = [(alone, False), (sending, True)]
        for timing, sends in pair if turn % 2 else reversed(pair):
            timing.measure(partial(prefill, sends))
        say(f"round {turn}: alone {alone.wall_s[-1]:.3f} s, sent {sending.wall_s[-1]:.3f} s")
    costs = [after / before - 1 for before, after in zip(alone.wall_s[1:], sending.wall_s[1:], strict=True)]
    cpu_costs = [after / before - 1 for before, after in zip(alone.cpu_s[1:], sending.cpu_s[1:], strict=True)]
    outcome.figures[f"prefill of {tokens} tokens alone, s (wall)"] = median(alone.wall_s[1:])
    outcome.figures["cost of sending it, by rounds (wall)"] = costs
    outcome.figures["cost of sending it, median (wall, CPU)"] = median(costs), median(cpu_costs)
    outcome.expect(median(costs) <= COST_AT_MOST, f"sending costs the prefill {median(costs):.1%}")


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--rounds", type=int, default=9)
    arguments.add_argument("--tokens", type=int, default=4096, help="of the prefill")
    arguments.add_argument("--receive", action="store_true", help="be the receiving process")
    given = arguments.parse_args(argv)
    if given.receive:
        receive()
        return 0
    outcome = BenchmarkResult("peer transfer: slab to slab between two processes")
    outcome.figures["load average before"] = os.getloadavg()[0]
    measure_bandwidth(given.rounds, outcome)
    measure_cost(given.rounds, given.tokens, outcome)
    outcome.figures["load average after"] = os.getloadavg()[0]
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
