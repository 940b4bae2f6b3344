"""KV from one node's engine into another's slots: `python -m benchmarks.engine.remote_transfer [--rounds 7]`.

Two transfer helpers over loopback, slab to slab, against as many bytes through a plain socket between two processes, in
turns in one run, by the wall's clock and by the CPU time of both processes: others stretch the former. Then what a
prefill costs while each of its chunks is sent as soon as it is computed, against the same prefill alone, in turns.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.engine.peer_transfer import (
    CHUNK_TOKENS,
    SHAPE,
    SLOT_BYTES,
    SLOTS,
    SlabProcess,
    Timing,
    compare_prefills,
    rate,
)
from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.effects import Address
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import load_model
from dunlin.engine.decoder.loading.random_checkpoint import write_random_checkpoint
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.process.frames import FrameReader, frame
from dunlin.engine.remote.options import HelperOptions
from dunlin.engine.remote.protocol import CHUNK_BYTES
from dunlin.engine.transfer.arena_slots import kv_file_runs, slab_of
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.peer_rooms import PeerRoomTable
from dunlin.messages.engine import Close, Meet, Open, Step, StepDone, Transfer, TransferDone
from dunlin.messages.types import Header, Region, SamplingParams, TransferKind, TransferStatus, i8, i32, i64
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT

NEAR, FAR = Address("engine", "near"), Address("engine", "far")
ROOM = 1


class Helper:
    """One transfer helper, told of an engine's memory. `agent` is what peers are told."""

    def __init__(self, engine: Address, agent: bytes) -> None:
        self._engine = engine
        self._socket, theirs = socket.socketpair()
        self._reader, self._events = FrameReader(), list[Any]()
        options = HelperOptions(engine.name, os.getpid(), theirs.fileno(), stall_s=60.0)
        with theirs:
            self.process = subprocess.Popen(options.command(), pass_fds=(theirs.fileno(),))
        self.agent = self.ask(Meet(engine, agent)).agent

    def order(self, message: Any) -> None:
        """Send a command."""
        self._socket.sendall(frame(ENGINE_COMMAND.encode(Header(self._engine), message)))

    def ask(self, message: Any) -> Any:
        """Send a command, and wait for the next event."""
        self.order(message)
        return self.event()

    def event(self) -> Any:
        """Wait for the next event."""
        while not self._events:
            self._events += [ENGINE_EVENT.decode(body)[1] for body in self._reader.feed(self._socket.recv(1 << 16))]
        return self._events.pop(0)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self._socket.close()


@contextmanager
def helpers(near_agent: bytes, far_agent: bytes) -> Iterator[tuple[Helper, Helper]]:
    """The sender's helper, which has met the receiver's, and that one."""
    with ExitStack() as stack:
        near, far = Helper(NEAR, near_agent), Helper(FAR, far_agent)
        stack.callback(near.close)
        stack.callback(far.close)
        met = near.ask(Meet(FAR, far.agent))
        assert not met.detail, met
        yield near, far


def memory() -> SlabProcess:
    """A slab whose first room has all of its slots."""
    made = SlabProcess()
    PeerRoomTable(made.page_fd).open(ROOM, [0], [SLOTS])
    return made


def kv_transfer(ticket: int, start: int, stop: int) -> Transfer:
    """Tokens in the slots of the same numbers."""
    region, extents = Region(0, SHAPE.layers, start, stop), (i64([start]), i64([stop - start]))
    return Transfer(ticket, TransferKind.SLAB_TO_PEER, 0, region, *extents, peer=FAR, peer_handle=ROOM)


class PlainSocket:
    """A process that reads a socket into memory, as fast as it can: what the machine gives."""

    def __init__(self, size: int) -> None:
        self._size = size
        with socket.create_server(("127.0.0.1", 0)) as listening:
            address = str(listening.getsockname()[1])
            command = [sys.executable, "-m", "benchmarks.engine.remote_transfer", "--receive", address, str(size)]
            self.process = subprocess.Popen(command)
            self._stream, _ = listening.accept()

    def send(self, source: "np.ndarray[Any, Any]") -> None:
        """All of it, until the other side has it."""
        for at in range(0, self._size, CHUNK_BYTES):
            self._stream.sendall(source[at : at + CHUNK_BYTES].data)
        assert self._stream.recv(1) == b"."

    def close(self) -> None:
        """End the process."""
        self._stream.close()
        self.process.wait()


def receive(port: int, size: int) -> None:
    """The plain receiver's process."""
    target = memoryview(bytearray(size))
    with socket.create_connection(("127.0.0.1", port)) as stream:
        while True:
            at = 0
            while at < size:
                got = stream.recv_into(target[at : at + CHUNK_BYTES])
                if not got:
                    return
                at += got
            stream.sendall(b".")


def measure_bandwidth(rounds: int, outcome: BenchmarkResult) -> None:
    """Slab to slab against a plain socket with as many bytes, in turns."""
    near, far, size = memory(), memory(), SHAPE.layers * SLOTS * SLOT_BYTES
    plain, sent, plain_cpu_s, sent_cpu_s = Timing(), Timing(), list[float](), list[float]()
    other = PlainSocket(size)
    try:
        with helpers(near.access.agent, far.access.agent) as (helper, receiving):
            by_plain, by_helpers = [os.getpid(), other.process.pid], [helper.process.pid, receiving.process.pid]
            for turn in range(rounds + 1):
                plain_cpu_s.append(cpu_s_of(by_plain, lambda: plain.measure(lambda: other.send(near.memory))))
                near.memory[:] = turn
                sent_cpu_s.append(cpu_s_of(by_helpers, lambda: sent.measure(lambda: _all_sent(helper))))
                assert far.memory[-1] == turn
                say(f"round {turn}: plain socket {plain.wall_s[-1]:.4f} s, between slabs {sent.wall_s[-1]:.4f}")
    finally:
        other.close()
    shares = [before / after for before, after in zip(plain.wall_s[1:], sent.wall_s[1:], strict=True)]
    outcome.figures["plain socket, GB/s (wall)"] = rate(size, plain.wall_s[1:])
    outcome.figures["slab to slab and verified, GB/s (wall)"] = rate(size, sent.wall_s[1:])
    outcome.figures["the first time, GB/s (wall)"] = size / sent.wall_s[0] / 1e9
    outcome.figures["share of the plain socket, by rounds (wall)"] = shares
    cpu_share = sum(plain_cpu_s[1:]) / sum(sent_cpu_s[1:])
    outcome.figures["share of the plain socket (median by wall, all by CPU)"] = median(shares), cpu_share


def cpu_s_of(processes: list[int], work: Callable[[], None]) -> float:
    """CPU time of the processes while the work is done, by the kernel's clock of 10 ms."""
    before = _cpu_ticks(processes)
    work()
    return (_cpu_ticks(processes) - before) / os.sysconf("SC_CLK_TCK")


def _cpu_ticks(processes: list[int]) -> int:
    fields = [Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split() for process in processes]
    return sum(int(each[11]) + int(each[12]) for each in fields)


def _all_sent(helper: Helper) -> None:
    done = helper.ask(kv_transfer(1, 0, SLOTS))
    assert done.status is TransferStatus.OK, done


class Prefill:
    """One engine without its process that computes a prompt in chunks; each is sent as soon as it is computed."""

    def __init__(self, folder: Path, tokens: int) -> None:
        write_random_checkpoint(folder, "llama", SHAPE)
        fd, self._page_fd = os.memfd_create("dunlin-bench-arena"), os.memfd_create("dunlin-bench-page")
        loaded = load_model(folder, "bfloat16", SLOTS * SHAPE.layers * SLOT_BYTES, numerics.fast_numerics(), fd)
        self._runner = EngineRunner(loaded.decoder, loaded.slots, time.perf_counter)
        self._access = PeerAccess(self._page_fd)
        self._access.publish(fd, slab_of(loaded.arena, loaded.decoder.kv), kv_file_runs(loaded.arena))
        self._layout = loaded.arena.record.layout
        self._tokens = tokens
        self._number = 0

    @property
    def agent(self) -> bytes:
        """For its helper."""
        return self._access.agent

    def run(self, helper: Helper | None) -> None:
        """From nothing to the end of the last chunk, and of what is sent."""
        self._number += 1
        sequence = self._number
        tokens = i32([(7 * i + i * i) % SHAPE.vocab for i in range(self._tokens)])
        self._runner.receive(Open(sequence, tokens, self._tokens, 8, SamplingParams(temperature=0.0)))
        for start in range(0, self._tokens, CHUNK_TOKENS):
            self._compute(sequence, start)
            if helper is not None:
                helper.order(self._transfer(start))
        for _ in range(0, self._tokens if helper is not None else 0, CHUNK_TOKENS):
            assert helper is not None
            done = helper.event()
            assert isinstance(done, TransferDone), done
            assert done.status is TransferStatus.OK, done
        self._runner.receive(Close(sequence))

    def _transfer(self, start: int) -> Transfer:
        region = Region(0, SHAPE.layers, start, start + CHUNK_TOKENS)
        extents = i64([start]), i64([CHUNK_TOKENS])
        return Transfer(
            start + 1, TransferKind.SLAB_TO_PEER, 0, region, *extents, peer=FAR, peer_handle=ROOM, layout=self._layout
        )

    def _compute(self, sequence: int, start: int) -> None:
        self._number += 1
        columns = i64([sequence]), i64([start]), i64([start + CHUNK_TOKENS]), i8([0])
        self._runner.receive(Step(self._number, *columns, i32([0]), i64([start]), i64([CHUNK_TOKENS])))
        events: list[Any] = []
        while self._runner.busy:
            events += self._runner.work(lambda: None)
        assert [type(event) for event in events] == [StepDone], events


@torch.inference_mode()
def measure_cost(rounds: int, tokens: int, outcome: BenchmarkResult) -> None:
    """A prefill that is sent while it computes, against the same alone, in turns."""
    torch.set_num_threads(1)
    far = memory()
    with tempfile.TemporaryDirectory() as folder:
        prefill = Prefill(Path(folder) / "model", tokens)
        with helpers(prefill.agent, far.access.agent) as (helper, _):
            compare_prefills(lambda sends: prefill.run(helper if sends else None), rounds, tokens, outcome)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--tokens", type=int, default=4096, help="of the prefill")
    arguments.add_argument("--receive", type=int, nargs=2, metavar=("PORT", "BYTES"), help="be the plain receiver")
    given = arguments.parse_args(argv)
    if given.receive:
        receive(*given.receive)
        return 0
    outcome = BenchmarkResult("remote transfer: slab to slab between two nodes' helpers over loopback")
    outcome.figures["load average before"] = os.getloadavg()[0]
    measure_bandwidth(given.rounds, outcome)
    measure_cost(given.rounds, given.tokens, outcome)
    outcome.figures["load average after"] = os.getloadavg()[0]
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
