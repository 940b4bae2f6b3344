"""Fuzz both public doors of a running cluster: no crash, no 5xx that is not meant, no slot and no memory lost.

    python -m benchmarks.doors.door_fuzz --seconds 600

HTTP: schemathesis on the door's own OpenAPI document (in the extra `fuzz`). gRPC: mutated and random
requests over several connections. Afterwards every process is the one that was started, every slot is free, and a
request is served.
"""

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from benchmarks.harness import report
from benchmarks.harness.fleet_status import instances_with_used_slots, unbalanced, wait_until
from benchmarks.harness.processes import resident_bytes
from benchmarks.harness.report import BenchmarkResult
from benchmarks.harness.session import CampaignSession
from cli.launch.cluster_process import ClusterProcess
from dunlin.messages.declare import Method
from dunlin.messages.fleet import FleetStatus
from dunlin.messages.public import ChatMessage, GenerateRequest
from dunlin.messages.types import i32
from dunlin.wire.codec import encode
from dunlin.wire.rpc.methods import CANCEL, GENERATE, INFO

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
MEANT = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.NOT_FOUND,
}
CONFIG = """\
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503, 504]
"""
"""For schemathesis: busy, and too late by the client's own limit, are answers; anything else with 5xx is not."""
SEEDS = [
    encode(GenerateRequest(prompt="once", max_tokens=3)),
    encode(GenerateRequest(prompt_tokens=i32((1, 2, 3)), max_tokens=2, stop=("a", "b"), logprobs=3, seed=5)),
    encode(GenerateRequest(messages=(ChatMessage("user", "hello"),), max_tokens=2, top_p=0.5, timeout_s=3.0)),
    encode(GenerateRequest(prompt="once", max_tokens=5, resume_request="req-1-1", resume_tokens=i32((1, 2)), seed=1)),
    encode(GenerateRequest(prompt="once", max_tokens=3, idempotency_key="again")),
]
METHODS: list[Method[Any, Any]] = [GENERATE, CANCEL, INFO]
LEAK_BYTES = 64 << 20
CALL_LIMIT_S = 5.0
SLOTS = 256


class GrpcFuzzer:
    """Owns one channel: calls with unchecked bytes, until the time is up."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self.calls = 0
        self.wrong: list[str] = []
        self._endpoint = endpoint
        self._draw = random.Random(seed)

    async def run(self, seconds: float) -> None:
        """Call until the time is up."""
        until_s = time.monotonic() + seconds
        async with grpc.aio.insecure_channel(self._endpoint) as channel:
            while time.monotonic() < until_s:
                await self._call(channel)

    async def _call(self, channel: grpc.aio.Channel) -> None:
        method = self._draw.choices(METHODS, [8, 1, 1])[0]
        data = mutate(self._draw.choice(SEEDS), self._draw)
        self.calls += 1
        try:
            if method.streams:
                stream: Any = channel.unary_stream(method.path)
                answer = stream(data, timeout=CALL_LIMIT_S)
                async for _ in answer:
                    if self._draw.random() < 0.1:
                        answer.cancel()
                        return
            else:
                call: Any = channel.unary_unary(method.path)
                await call(data, timeout=CALL_LIMIT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in MEANT:
                self.wrong.append(f"{method.name}({data[:60]!r}): {error.code().name}: {error.details()}")


def mutate(seed: bytes, draw: random.Random) -> bytes:
    """A message with a few bytes changed, cut, doubled or replaced by noise."""
    data = bytearray(seed)
    for _ in range(draw.randrange(4)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(4):
            case 0:
                data[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del data[at:]
            case 2:
                data[at:at] = draw.randbytes(draw.randrange(1, 9))
            case 3:
                data += data[at:]
    return bytes(data)


def fuzz_http(url: str, seconds: int, folder: Path, python: str = sys.executable) -> str:
    """Run schemathesis, installed beside `python`, on the door; what failed, nothing if all is well."""
    command = [
        *(python, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", CHECKS),
        *("--max-time", str(seconds), "--max-examples", "1000000", "--phases", "examples,coverage,fuzzing"),
        *("--request-timeout", "120", "--max-failures", "20", "--no-color", "--suppress-health-check", "all"),
    ]
    (folder / "schemathesis.toml").write_text(CONFIG)
    with (folder / "schemathesis.txt").open("w+") as said:
        code = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said).returncode
        said.seek(0)
        text = said.read()
    summary = text[text.rfind("SUMMARY") - 40 :] if "SUMMARY" in text else text[-800:]
    report.say(summary)
    found = [text.find(heading) for heading in ("FAILURES", "ERRORS") if heading in text]
    return "" if code == 0 else text[min(found, default=0) :][:4000]


async def run(cluster: ClusterProcess, seconds: int, width: int) -> BenchmarkResult:
    """Both doors, one after the other, against a running cluster."""
    outcome = BenchmarkResult(f"doors: {seconds} s of nonsense each")
    async with CampaignSession(cluster) as session:
        before = _processes(await session.status())
        start_bytes = _resident(before)
        with tempfile.TemporaryDirectory() as folder:
            failed = await asyncio.to_thread(fuzz_http, cluster.http, seconds, Path(folder))
        outcome.expect(not failed, f"HTTP: {failed}")
        warm_bytes = _resident(before)
        fuzzers = [GrpcFuzzer(cluster.grpc.split(",")[0], seed) for seed in range(width)]
        await asyncio.gather(*(fuzzer.run(seconds) for fuzzer in fuzzers))
        await session.client.generate("still there?", max_tokens=4)
        status = await wait_until(session.status, lambda s: not instances_with_used_slots(s), "every slot free")
        after = _processes(status)
    outcome.failures += [text for fuzzer in fuzzers for text in fuzzer.wrong][:20] + unbalanced(status)
    outcome.expect(after == before, f"processes changed: {before} to {after}")
    grown = {name: now - warm_bytes[name] for name, now in _resident(after).items() if name in warm_bytes}
    outcome.figures["gRPC calls"] = sum(fuzzer.calls for fuzzer in fuzzers)
    for name, size in grown.items():
        outcome.figures[f"{name}: grew in the HTTP and in the gRPC half (MiB)"] = (
            (warm_bytes[name] - start_bytes[name]) / (1 << 20),
            size / (1 << 20),
        )
        outcome.expect(size < LEAK_BYTES, f"{name} grew by {size >> 20} MiB")
    return outcome


def _processes(status: FleetStatus) -> dict[str, int]:
    return {member.address.name: member.pid for member in status.members if member.connected}


def _resident(processes: dict[str, int]) -> dict[str, int]:
    return {name: resident_bytes(pid, "RssAnon") for name, pid in processes.items()}


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--seconds", type=int, default=600, help="for each door")
    arguments.add_argument("--width", type=int, default=8, help="connections of the gRPC half")
    given = arguments.parse_args(argv)
    # Few slots: 128 answers without a limit of their own are soon at the longest there is, not after minutes.
    with ClusterProcess("--instances", str(given.instances), "--slots", str(SLOTS)) as cluster:
        outcome = asyncio.run(run(cluster, given.seconds, given.width))
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
