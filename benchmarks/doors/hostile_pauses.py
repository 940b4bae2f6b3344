"""What the streams of a running cluster wait while others send hostile bodies to its doors.

    python -m benchmarks.doors.hostile_pauses

Eight steady streams (four over gRPC, four over SSE) and a probe of the HTTP door, all in a process of their own; beside
them each kind of body (`benchmarks/doors/hostile_bodies.py`), one kind after the other, in rounds. The gap between two
tokens of a stream holds the engine's steps too, which slow down when others use its cores; the probe waits for the
dispatcher's event loop alone. `first` is from a stream's request to its first token.
"""

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import grpc
import grpc.aio

from benchmarks.doors.hostile_bodies import GRPC, HostileBody, kinds
from benchmarks.doors.pause_listener import ListenOrder, StreamWaits
from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult
from cli.launch.cluster_process import ClusterProcess
from dunlin.policies.presets import DEFAULT_PRESET
from dunlin.runtime.parent_death import die_with_parent_command
from dunlin.wire.channels import open_channel
from dunlin.wire.rpc.methods import GENERATE

QUIET = "nothing"
ANSWERED = ("200", "OK")
WAITS = ("probe", "grpc", "sse", "first")
"""What is shown of `StreamWaits`, in this order."""
CALL_LIMIT_S = 60.0
MOST_ERROR_BYTES = 4_096
AFTER_S = 0.2
"""Listened to after the last answer, in seconds: what is freed then counts too."""


class ListenerProcess:
    """Owns the process that follows the streams."""

    def __init__(self, order: ListenOrder) -> None:
        command = [sys.executable, "-m", "benchmarks.doors.pause_listener", json.dumps(asdict(order))]
        # A session of its own: the kernel may share cores among sessions, and that of the sender has used much already.
        self._process = subprocess.Popen(
            die_with_parent_command(command, os.getpid()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def heard(self) -> StreamWaits:
        """What was heard since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return StreamWaits(**json.loads(self._process.stdout.readline()))

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@dataclass(slots=True)
class PausesByBody:
    """What was heard beside one kind of body, over all rounds."""

    heard: StreamWaits = field(default_factory=StreamWaits)
    answers: Counter[str] = field(default_factory=Counter)

    def add(self, heard: StreamWaits) -> None:
        """One round more."""
        for name in WAITS:
            getattr(self.heard, name).extend(getattr(heard, name))
        self.heard.cut += heard.cut

    def bounded_ms(self) -> dict[str, float]:
        """The longest wait of each kind that is to be short: of streams only where all work that was sent was refused.

        What is answered takes its share of the engine from the streams.
        """
        is_refused = not any(answer.startswith(ANSWERED) for answer in self.answers)
        names = ("probe", "grpc", "sse") if is_refused else ("probe",)
        return {name: max(getattr(self.heard, name), default=math.inf) * 1e3 for name in names}


class HostileSender:
    """Sends hostile bodies to both doors; owns its connections."""

    def __init__(self, http: str, endpoint: str) -> None:
        self._http = http
        self._endpoint = endpoint

    async def send(self, hostile: HostileBody) -> Counter[str]:
        """All of its bodies at once; how they were answered."""
        one = self._call if hostile.path == GRPC else self._post
        return Counter(await asyncio.gather(*(one(hostile) for _ in range(hostile.width))))

    async def _post(self, hostile: HostileBody) -> str:
        limit = aiohttp.ClientTimeout(CALL_LIMIT_S)
        try:
            async with aiohttp.ClientSession(self._http, timeout=limit) as session:
                headers = {"Content-Type": "application/json", **hostile.headers}
                async with session.post(hostile.path, data=hostile.data, headers=headers) as answer:
                    said = await answer.read()
                    is_long = answer.status != 200 and len(said) > MOST_ERROR_BYTES
                    return f"{answer.status}{' long' if is_long else ''}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return type(error).__name__

    async def _call(self, hostile: HostileBody) -> str:
        async with open_channel(self._endpoint) as channel:
            call: Any = channel.unary_stream(GENERATE.path)
            try:
                async for _ in call(hostile.data, timeout=CALL_LIMIT_S):
                    pass
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)
        return "OK"


async def run(cluster: ClusterProcess, given: Any) -> BenchmarkResult:
    """Every kind, in rounds, beside the streams."""
    outcome = BenchmarkResult(f"streams beside hostile bodies: p99 and longest wait of {given.rounds} rounds, ms")
    sender = HostileSender(cluster.http, cluster.grpc.split(",")[0])
    listening = ListenerProcess(ListenOrder(cluster.http, cluster.grpc.split(",")[0], given.streams))
    try:
        await asyncio.sleep(2.0)
        for name, felt in (await _felt(given, listening, sender)).items():
            outcome.figures[name] = _shown(felt)
            for wait, longest_ms in felt.bounded_ms().items():
                outcome.expect(longest_ms <= given.most_ms, f"{name}: {wait} waited {longest_ms:.0f} ms")
            outcome.expect(not felt.heard.cut, f"{name}: {felt.heard.cut} streams were cut")
    finally:
        listening.stop()
    return outcome


async def _felt(given: Any, listening: ListenerProcess, sender: HostileSender) -> dict[str, PausesByBody]:
    felt = {QUIET: PausesByBody()}
    chosen = {name: make for name, make in kinds().items() if given.only in name}
    for name, make in chosen.items():
        hostile = make()
        felt[name] = PausesByBody()
        for _ in range(given.rounds):
            await _round(felt[QUIET], listening, asyncio.sleep(0.5, Counter()))
            await _round(felt[name], listening, sender.send(hostile))
        report.say(f"{name}: {json.dumps(_shown(felt[name]))}")
    return felt


async def _round(felt: PausesByBody, listening: ListenerProcess, work: Any) -> None:
    await asyncio.to_thread(listening.heard)
    began_s = time.monotonic()
    felt.answers.update(await work)
    felt.answers["seconds"] += round(time.monotonic() - began_s)
    await asyncio.sleep(AFTER_S)
    felt.add(await asyncio.to_thread(listening.heard))


def _shown(felt: PausesByBody) -> str:
    heard = felt.heard
    waits = "  ".join(f"{name} {_pair(getattr(heard, name))}" for name in WAITS)
    answers = ", ".join(f"{count} × {name}" for name, count in felt.answers.items() if name != "seconds")
    return f"{waits}  {answers}" + (f"  cut {heard.cut}" if heard.cut else "")


def _pair(waits_s: Sequence[float]) -> str:
    if not waits_s:
        return "-"
    ordered = sorted(waits_s)
    return f"{ordered[int(0.99 * (len(ordered) - 1))] * 1e3:.0f}/{ordered[-1] * 1e3:.0f}"


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.set_defaults(instances=1)
    arguments.add_argument("--rounds", type=int, default=3, help="of each kind")
    arguments.add_argument("--streams", type=int, default=4, help="at each door")
    arguments.add_argument("--only", default="", metavar="TEXT", help="kinds with this in their names")
    arguments.add_argument("--preset", default=DEFAULT_PRESET, help="of the cluster's policies")
    arguments.add_argument(
        "--most-ms",
        type=float,
        default=100.0,
        help="that the HTTP door may be silent, and a stream beside what is refused",
    )
    given = arguments.parse_args(argv)
    with ClusterProcess("--instances", str(given.instances), "--slots", "16384", "--preset", given.preset) as cluster:
        outcome = asyncio.run(run(cluster, given))
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
