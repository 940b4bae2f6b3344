"""Run real clients against a cluster: each in a virtual environment of its own, everything that it sends recorded.

    python -m benchmarks.clients.compatibility
    python -m benchmarks.clients.compatibility --only guidellm,aiperf --record requests.jsonl

Libraries run `benchmarks/drivers/`; load tools run themselves. A client is broken if one of its checks fails, if the
door answers with 5xx, or if a load tool is refused anything. Fields that the door takes without effect are named.
The environments take 4 GB and stay in `build/clients`; pip needs an index that carries the pinned versions.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.clients.recording_proxy import RecordedExchange, RecordingProxy
from benchmarks.doors.door_fuzz import SLOTS, fuzz_http
from benchmarks.harness import report
from cli.common.output import table
from cli.launch.cluster_process import ClusterProcess
from services.dispatcher.doors.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldSupport

ROOT = Path(__file__).parents[2]
MODEL = "builtin:tiny"
FIELDS = {"/v1/completions": COMPLETION_FIELDS, "/v1/chat/completions": CHAT_FIELDS}
MOST_S = 300.0
SETTLE_S = 0.3
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""litellm looks for a newer price list first, which is not there behind a firewall."""


@dataclass(frozen=True, slots=True)
class ClientUnderTest:
    """A client: what pip installs, `alone` without dependencies, and the command that follows the environment's python.

    `is_load`: it must never be refused anything.
    """

    name: str
    pins: tuple[str, ...]
    command: tuple[str, ...]
    alone: tuple[str, ...] = ()
    is_load: bool = False

    @property
    def version(self) -> str:
        """Of the package that it is about."""
        return (*self.alone, *self.pins)[0].partition("==")[2]


def _driver(name: str) -> tuple[str, ...]:
    return ("-m", f"benchmarks.clients.drivers.{name}", "{url}", MODEL)


def _guidellm(path: str) -> tuple[str, ...]:
    backend = json.dumps({"kind": "openai_http", "target": "{url}", "model": MODEL, "request_format": path})
    return (
        *("-m", "guidellm", "run", "--backend", backend, "--profile", "kind=concurrent,streams=2"),
        *("--constraint", "kind=max_requests,count=10", "--tokenizer", "kind=hf_auto,model={model}"),
        *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16", "--disable-progress"),
        *("--output", "kind=json,path={folder}/guidellm.json"),
    )


def _aiperf(kind: str, *more: str) -> tuple[str, ...]:
    return (
        *("-m", "aiperf", "profile", "-m", MODEL, "--url", "{url}", "--endpoint-type", kind, "--streaming"),
        *(
            "--tokenizer",
            "{model}",
            "--request-count",
            "10",
            "--concurrency",
            "2",
            "--synthetic-input-tokens-mean",
            "32",
        ),
        *("--output-tokens-mean", "16", "--artifact-dir", "{folder}/aiperf", "--ui", "none", *more),
    )


TORCH = "torch==2.13.0"
GUIDELLM = ("guidellm==0.8.1", TORCH)
AIPERF = ("aiperf==0.13.0",)
CLIENTS = (
    ClientUnderTest("openai", ("openai==3.54.0",), _driver("openai_package")),
    ClientUnderTest("openai 2", ("openai==2.54.0",), _driver("openai_package")),
    ClientUnderTest("litellm", ("litellm==1.106.2", "mcp"), _driver("litellm_package")),
    ClientUnderTest("langchain-openai", ("langchain-openai==1.7.3",), _driver("langchain_package")),
    ClientUnderTest("llama-index", ("llama-index-llms-openai-like==0.8.1",), _driver("llamaindex_package")),
    ClientUnderTest("instructor", ("instructor==1.17.0",), _driver("instructor_package")),
    ClientUnderTest("guidellm chat", GUIDELLM, _guidellm("/v1/chat/completions"), is_load=True),
    ClientUnderTest("guidellm completions", GUIDELLM, _guidellm("/v1/completions"), is_load=True),
    ClientUnderTest("aiperf chat", AIPERF, _aiperf("chat", "--extra-inputs", "ignore_eos:true"), is_load=True),
    ClientUnderTest("aiperf completions", AIPERF, _aiperf("completions"), is_load=True),
    ClientUnderTest(
        "vllm bench requests",
        ("aiohttp==3.14.5", "regex", "tqdm"),
        _driver("vllm_requests"),
        alone=("vllm==0.33.0",),
        is_load=True,
    ),
)
SCHEMATHESIS = ClientUnderTest("schemathesis", ("schemathesis==4.32.5",), ())


@dataclass(slots=True)
class ClientResult:
    """What one client did, and what became of it."""

    client: str
    version: str
    requests: int = 0
    served: int = 0
    refused: int = 0
    checks: str = "-"
    broken: list[str] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)


def environment(client: ClientUnderTest, folder: Path) -> Path:
    """The python of the client's environment, made on first use; clients with the same pins share one."""
    name = (*client.alone, *client.pins)[0].replace("==", "-")
    python = folder / name / "bin/python"
    done = folder / name / ".installed"
    if not done.exists():
        report.say(f"installing {name}")
        subprocess.run((sys.executable, "-m", "venv", "--clear", str(folder / name)), check=True)
        pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run((*pip, *client.pins), check=True)
        if client.alone:
            subprocess.run((*pip, "--no-deps", *client.alone), check=True)
        done.touch()
    return python


async def run(
    client: ClientUnderTest, python: Path, cluster: ClusterProcess
) -> tuple[ClientResult, list[RecordedExchange]]:
    """One client from its start to its end."""
    door = urlsplit(cluster.http)
    recorder = RecordingProxy(door.hostname or "", door.port or 0)
    await recorder.start()
    with tempfile.TemporaryDirectory() as folder:
        code, said = await _run(client, python, recorder.url, _model_of(cluster), folder)
    await asyncio.sleep(SETTLE_S)  # connections that the client left open are closed by now
    await recorder.stop()
    exchanges = recorder.exchanges()
    return judge(client, code, said, exchanges), exchanges


async def _run(client: ClientUnderTest, python: Path, url: str, model: Path, folder: str) -> tuple[int, str]:
    words = [_filled(word, url, str(model), folder) for word in client.command]
    environ = {**os.environ, **QUIET, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    process = await asyncio.create_subprocess_exec(
        python, *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder, env=environ
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), MOST_S)
    except TimeoutError:
        process.kill()
        return 1, f"did not end within {MOST_S:g} s"
    return process.returncode or 0, said.decode(errors="replace")


def _filled(word: str, url: str, model: str, folder: str) -> str:
    return word.replace("{url}", url).replace("{model}", model).replace("{folder}", folder)


def _model_of(cluster: ClusterProcess) -> Path:
    """Where the built-in model lies: load tools count tokens with its tokenizer."""
    places = (Path(os.environ.get("DUNLIN_MODELS", cluster.data_dir / "models"))).glob("*/tokenizer.json")
    return next(places).parent


def judge(client: ClientUnderTest, code: int, said: str, exchanges: Sequence[RecordedExchange]) -> ClientResult:
    """What the exchanges and the client's own words amount to."""
    asked = [one for one in exchanges if one.method == "POST"]
    row = ClientResult(client.name, client.version, requests=len(asked))
    row.served = sum(one.status == 200 for one in asked)
    row.refused = sum(400 <= one.status < 500 for one in asked)
    row.without_effect = sorted({name for one in asked if one.status == 200 for name in without_effect(one)})
    checks = _checks(said)
    if checks is not None:
        row.checks = f"{checks['passed']} of {checks['passed'] + len(checks['failed'])}"
        row.broken += [f"{name}: {text}" for name, text in checks["failed"].items()]
    elif code:
        row.broken.append(f"exit code {code}: {said[-400:]}")
    row.broken += [f"{one.status} to {one.body}" for one in asked if one.status >= 500 and one.status != 504]
    if client.is_load:
        row.broken += [f"{one.status}: {one.answer[:200]!r}" for one in asked if 400 <= one.status < 500]
    if not row.served:
        row.broken.append("nothing was served")
    return row


def without_effect(exchange: RecordedExchange) -> list[str]:
    """Fields of a request that was served which the door does not honour, so that they change nothing."""
    fields = FIELDS.get(urlsplit(exchange.path).path, {})
    given = [name for name, value in (exchange.body or {}).items() if value is not None]
    return [name for name in given if name not in fields or fields[name].support is not FieldSupport.HONOURED]


def _checks(said: str) -> dict[str, Any] | None:
    last = said.strip().rpartition("\n")[2]
    try:
        found = json.loads(last)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "passed" in found else None


def fuzzed(python: Path, seconds: int) -> ClientResult:
    """schemathesis on the door's own document, beside a cluster with few slots as `benchmarks.doors.door_fuzz` has
    it."""
    row = ClientResult(SCHEMATHESIS.name, SCHEMATHESIS.version)
    with ClusterProcess("--instances", "1", "--slots", str(SLOTS)) as cluster, tempfile.TemporaryDirectory() as folder:
        if failed := fuzz_http(cluster.http, seconds, Path(folder), str(python)):
            row.broken.append(failed)
    row.checks = f"{seconds} s"
    return row


def _shown(row: ClientResult) -> tuple[str, ...]:
    effect = ", ".join(row.without_effect) or "-"
    counts = (row.requests, row.served, row.refused)
    return (row.client, row.version, *map(str, counts), row.checks, str(len(row.broken)), effect)


HEADER = ("client", "version", "requests", "served", "refused by name", "checks passed", "broken", "without effect")


def main(argv: list[str] | None = None) -> int:
    """The command."""
    given = _arguments().parse_args(argv)
    wanted = [one for one in CLIENTS if not given.only or one.name.split()[0] in given.only.split(",")]
    pythons = [environment(one, given.environments) for one in wanted]
    rows, kept = [], []
    with ClusterProcess("--instances", "1") as cluster:
        for client, python in zip(wanted, pythons, strict=True):
            start_s = time.monotonic()
            row, exchanges = asyncio.run(run(client, python, cluster))
            report.say(f"{client.name}: {time.monotonic() - start_s:.0f} s; {'; '.join(row.broken) or 'well'}")
            rows.append(row)
            kept += [{"client": client.name, **asdict(one), "answer": one.answer.decode()} for one in exchanges]
    if given.fuzz_seconds:
        rows.append(fuzzed(environment(SCHEMATHESIS, given.environments), given.fuzz_seconds))
    if given.record:
        given.record.write_text("".join(json.dumps(one) + "\n" for one in kept))
    print(f"{report.machine()}\n\n{table(HEADER, [_shown(row) for row in rows])}")
    broken = Counter({row.client: len(row.broken) for row in rows if row.broken})
    for row in rows:
        print("".join(f"\n{row.client}: {text}" for text in row.broken), end="")
    print(f"\n{broken.total()} broken in {len(broken)} clients" if broken else "\neverything held")
    return 1 if broken else 0


def _arguments() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", default="", help="clients by name, separated by commas (default: all)")
    made.add_argument("--environments", type=Path, default=ROOT / "build/clients", help="where environments are kept")
    made.add_argument("--record", type=Path, help="write every exchange to this file, one JSON object a line")
    made.add_argument("--fuzz-seconds", type=int, default=0, help="run schemathesis for so long afterwards (600)")
    return made


if __name__ == "__main__":
    sys.exit(main())
