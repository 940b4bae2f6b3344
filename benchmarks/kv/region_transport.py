"""Regions from one process to another: by sockets, by sockets with TLS, and by NIXL's one-sided writes, side by side.

    python -m benchmarks.kv.region_transport
    python -m benchmarks.kv.region_transport --namespaces     the receiver behind a virtual cable (needs root)

Every way carries the same regions, alone and several queued at once, in rounds that alternate between the ways, so that
other work on the machine meets all of them. A region counts when its receiver has hashed it and said so.
"""

import argparse
import os
import queue
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, cast

import xxhash

from benchmarks.harness import report
from benchmarks.harness.namespaces import ROOT, namespace_link
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.auth.certificates import CertificateRequest, issue_certificate, make_ca
from dunlin.kv.region_identity import signed_digest
from dunlin.messages.exchange import TransferAgent
from dunlin.messages.types import Priority, Region
from dunlin.runtime.parent_death import die_with_parent_command
from dunlin.transport.one_sided.nixl_agent import is_installed, open_nixl_agent
from dunlin.transport.one_sided.outbound import OneSidedSend
from dunlin.transport.one_sided.transfer_loop import TransferLoop
from dunlin.transport.payload import RegionHeader
from dunlin.transport.sockets.receiver import RegionReceiver
from dunlin.transport.sockets.sender import RegionSend, RegionSender
from dunlin.wire.security import TlsIdentity, server_name

ROOM = 64 << 20
NAME = "bench"
LIMIT_S = 120.0
BATCH = {64 << 10: 64, 1 << 20: 32, 16 << 20: 4}
"""Regions queued at once, by their length in bytes."""


@dataclass(slots=True)
class TransferFigures:
    """Of one way and one length: of single regions, and of batches with the processor time of both ends."""

    single_s: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    cpu_s_per_gb: list[float] = field(default_factory=list)


class ReceivingEnd:
    """The receiving process: a tier, and one receiver per way."""

    def __init__(self, host: str, tls: Path) -> None:
        self._room = memoryview(bytearray(ROOM))
        security = TlsIdentity.load(tls)
        self._plain = RegionReceiver(self._room, _ignore, host=host)
        self._tls = RegionReceiver(self._room, _ignore, host=host, tls=security.server_context)
        self._courier = _courier(self._room, _ignore)
        self._endpoints = {"sockets": f"{host}:{self._plain.port}", "TLS": f"{host}:{self._tls.port}"}

    def serve(self, line: Connection) -> None:
        """Answer until the other side hangs up."""
        line.send((self._endpoints, self._courier.descriptor if self._courier is not None else None))
        while (asked := line.recv()) is not None:
            if asked == "cpu":
                line.send(time.process_time())
            else:
                line.send([self._expect(*one) for one in asked])

    def _expect(self, way: str, payload: RegionHeader, agent: TransferAgent | None) -> bytes:
        if way == "NIXL":
            assert self._courier is not None
            assert agent is not None
            return self._courier.expect(payload, 0, agent)
        return (self._tls if way == "TLS" else self._plain).expect(payload, 0)


class SendingEnd:
    """The sending side, and the line to the other."""

    def __init__(self, line: Connection, tls: Path) -> None:
        self._line = line
        self._room = memoryview(bytearray(random.Random(1).randbytes(ROOM)))
        self._sent: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        told: Callable[[int, str], None] = lambda ticket, detail: self._sent.put((ticket, detail))  # noqa: E731
        security = TlsIdentity.load(tls)
        self._plain = RegionSender(self._room, told)
        self._tls = RegionSender(self._room, told, tls=security.client_context)
        self._courier = _courier(self._room, _ignore, told)
        self._endpoints, self._agent = cast("tuple[dict[str, str], TransferAgent | None]", line.recv())

    @property
    def ways(self) -> tuple[str, ...]:
        """What both sides can do."""
        both = self._courier is not None and self._agent is not None
        return ("sockets", "TLS", *(("NIXL",) if both else ()))

    def measure(self, way: str, length: int, singles: int, into: TransferFigures) -> None:
        """Some regions alone, then a batch."""
        into.single_s += [self._carry(way, length, 1) for _ in range(singles)]
        before_s = self._cpu_s()
        taken_s = self._carry(way, length, BATCH[length])
        moved_gb = BATCH[length] * length / 1e9
        into.rate.append(moved_gb / taken_s)
        into.cpu_s_per_gb.append((self._cpu_s() - before_s) / moved_gb)

    def hang_up(self) -> None:
        """Let the other side end."""
        self._line.send(None)

    def _carry(self, way: str, length: int, count: int) -> float:
        plain = RegionHeader(b"", 1, 1, Region(0, 1, 0, 1), "float32", b"", length, 0)
        checksum = signed_digest(xxhash.xxh3_64_intdigest(plain.identity + bytes(self._room[:length])))
        payload = replace(plain, checksum=checksum)
        about = self._courier.descriptor if self._courier is not None else None
        self._line.send([(way, payload, about)] * count)
        tokens = cast("list[bytes]", self._line.recv())
        began_s = time.perf_counter()
        for ticket, token in enumerate(tokens):
            self._submit(way, ticket, replace(payload, token=token))
        details = [self._sent.get(timeout=LIMIT_S)[1] for _ in tokens]
        if any(details):
            raise RuntimeError(f"{way}, {length} bytes: {next(filter(None, details))}")
        return time.perf_counter() - began_s

    def _submit(self, way: str, ticket: int, payload: RegionHeader) -> None:
        if way == "NIXL":
            assert self._courier is not None
            assert self._agent is not None
            self._courier.submit(OneSidedSend(ticket, self._agent, payload, 0), Priority.KV)
            return
        parcel = RegionSend(ticket, self._endpoints[way], server_name("kvstore", NAME), payload, 0)
        (self._tls if way == "TLS" else self._plain).submit(parcel, Priority.KV)

    def _cpu_s(self) -> float:
        self._line.send("cpu")
        return time.process_time() + float(self._line.recv())


def _ignore(*news: Any) -> None:
    """The measurement hears it from the sender."""


def _courier(room: memoryview, received: Any, sent: Any = _ignore) -> TransferLoop | None:
    return TransferLoop(room, open_nixl_agent(NAME), received, sent) if is_installed() else None


@contextmanager
def joined(has_namespaces: bool) -> Iterator[SendingEnd]:
    """Both processes, the receiving one behind a cable or not."""
    with ExitStack() as stack:
        between = stack.enter_context(namespace_link()) if has_namespaces else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dunlin-bench-")))
        host = between.far if between is not None else "127.0.0.1"
        make_ca(folder / "ca")
        issue_certificate(folder / "ca", folder / "tls", CertificateRequest("kvstore", NAME, (host,)))
        listener = stack.enter_context(Listener(str(folder / "line")))
        command = die_with_parent_command(
            [sys.executable, "-m", "benchmarks.kv.region_transport", "--there", str(folder), host], os.getpid()
        )
        there = subprocess.Popen(between.inside(command) if between is not None else command, cwd=ROOT)
        try:
            here = SendingEnd(listener.accept(), folder / "tls")
            yield here
            here.hang_up()
            there.wait(20)
        finally:
            there.kill()
            there.wait()


def measure(here: SendingEnd, rounds: int, singles: int) -> dict[tuple[int, str], TransferFigures]:
    """All ways in turn, round after round. The first round warms up and is not counted."""
    for way in here.ways:
        for length in BATCH:
            here.measure(way, length, 1, TransferFigures())
    found = {(length, way): TransferFigures() for length in BATCH for way in here.ways}
    for number in range(rounds):
        for (length, way), figures in found.items():
            here.measure(way, length, singles, figures)
        say(f"round {number + 1} of {rounds}")
    return found


def summarize(found: dict[tuple[int, str], TransferFigures], where: str) -> BenchmarkResult:
    """Medians, and the spread of the rounds."""
    outcome = BenchmarkResult(f"regions between two processes, {where}")
    for (length, way), figures in found.items():
        name = f"{length >> 10} KiB, {way}"
        ordered = sorted(figures.single_s)
        p50, p90 = statistics.median(ordered), ordered[int(0.9 * (len(ordered) - 1))]
        outcome.figures[f"{name}: one region, p50 / p90 (ms)"] = (round(1e3 * p50, 2), round(1e3 * p90, 2))
        rates = (statistics.median(figures.rate), min(figures.rate), max(figures.rate))
        outcome.figures[f"{name}: {BATCH[length]} queued, p50 / min / max (GB/s)"] = tuple(round(r, 2) for r in rates)
        cpu = round(statistics.median(figures.cpu_s_per_gb), 2)
        outcome.figures[f"{name}: processor time of both ends (s/GB)"] = cpu
    return outcome


def serve_there(folder: Path, host: str) -> int:
    """The receiving process."""
    with Client(str(folder / "line")) as line:
        ReceivingEnd(host, folder / "tls").serve(line)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    flags = report.parser(__doc__ or "")
    flags.add_argument("--namespaces", action="store_true", help="the receiver in a namespace of its own (needs root)")
    flags.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds that are counted")
    flags.add_argument("--singles", type=int, default=8, metavar="N", help="regions carried alone, per round")
    flags.add_argument("--there", nargs=2, help=argparse.SUPPRESS)
    given = flags.parse_args(argv)
    if given.there:
        return serve_there(Path(given.there[0]), given.there[1])
    with joined(given.namespaces) as here:
        found = measure(here, given.rounds, given.singles)
    return report.finish(summarize(found, "over a cable" if given.namespaces else "over loopback"), given.json)


if __name__ == "__main__":
    sys.exit(main())
