"""Batch jobs on real processes: OpenAI's client, the SDK and the command; dispatchers die in the middle of a job."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import dunlin
from benchmarks.harness.processes import gone
from cli.launch.cluster_process import ClusterProcess
from dunlin.client import DunlinError
from services.dispatcher.batches.results_check import broken_results
from tests.cluster.conftest import Command, eventually

pytestmark = pytest.mark.cluster

LINES = 400
BATCHES = {"segment_lines": 16, "lines_in_flight": 32, "lease_ttl_s": 3, "commit_interval_s": 1.0}


@pytest.fixture(scope="module")
def pair() -> Iterator[ClusterProcess]:
    """Two dispatchers over one instance, to break; `dunlin up` starts the dead ones again."""
    flags = [flag for name, value in BATCHES.items() for flag in ("--set", f"dispatcher.batches.{name}={value}")]
    with ClusterProcess("--instances", "1", "--dispatchers", "2", "--deterministic", *flags) as made:
        yield made


def line(number: int, tokens: int = 4) -> dict[str, Any]:
    body = {"prompt": [number % 900, 7, 11], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"custom_id": f"line {number}", "method": "POST", "url": "/v1/completions", "body": body}


@pytest.fixture(scope="module")
def requests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a job; two of its lines are bad."""
    path = tmp_path_factory.mktemp("batches") / "requests.jsonl"
    lines = [json.dumps(line(number, number % 7 + 1)) for number in range(LINES)]
    lines[10], lines[200] = "{", lines[3]
    path.write_text("\n".join(lines) + "\n")
    return path


def texts(output: list[bytes]) -> dict[str, str]:
    """What was said to each line."""
    answers = map(json.loads, output)
    return {one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in answers}


def results(client: dunlin.Client, batch: str) -> tuple[list[bytes], list[bytes]]:
    output, errors = (
        b"".join(client.batches.content(batch, errors=kind)).splitlines(keepends=True) for kind in (False, True)
    )
    return output, errors


@pytest.fixture(scope="module")
def undisturbed(pair: ClusterProcess, requests: Path) -> dict[str, str]:
    """What each line says; OpenAI's own client asks."""
    with openai.OpenAI(base_url=f"{pair.http_doors[0]}/v1", api_key="none") as client:
        file = client.files.create(file=requests, purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", metadata={"who": "tests"}
        )

        def is_over() -> bool:
            return client.batches.retrieve(batch.id).status not in ("validating", "in_progress")

        eventually(is_over)
        batch = client.batches.retrieve(batch.id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": LINES, "completed": LINES - 2, "failed": 2}
        assert batch.errors is not None
        assert [(one.line, one.code) for one in batch.errors.data or []] == [
            (11, "invalid_json_line"),
            (201, "duplicate_custom_id"),
        ]
        output = client.files.content(batch.output_file_id or "").content.splitlines(keepends=True)
        errors = client.files.content(batch.error_file_id or "").content.splitlines(keepends=True)
        assert broken_results(requests.read_bytes().splitlines(), output, errors) == []
        return texts(output)


def holder(pair: ClusterProcess, batch: str) -> str:
    """The name of the dispatcher that works on the job, by the logs: the last that took it up."""
    found = [
        (at, name)
        for name in ("dispatcher-0", "dispatcher-1")
        if (at := pair.log(name).rfind(f"{batch}: at line")) >= 0
    ]
    assert found
    return found[-1][1]


def pid_of(client: dunlin.Client, name: str) -> int:
    return next(m.pid for m in client.status().members if m.address.name == name)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_job_whose_dispatcher_is_lost_has_every_line_once(
    pair: ClusterProcess, requests: Path, undisturbed: dict[str, str], number: signal.Signals
) -> None:
    with dunlin.Client(pair.grpc) as client:
        job = client.batches.create(requests)
        eventually(lambda: still(client, job.batch).completed > 0)
        victim = pid_of(client, holder(pair, job.batch))
        before = still(client, job.batch)
        assert before.is_open, "the job was over before its dispatcher was lost"
        os.kill(victim, number)
        try:
            eventually(lambda: not still(client, job.batch).is_open)
        finally:
            if number is signal.SIGSTOP and not gone(victim):
                os.kill(victim, signal.SIGCONT)
        ended = still(client, job.batch)
        assert (ended.status, ended.total, ended.completed, ended.failed) == ("completed", LINES, LINES - 2, 2)
        output, errors = results(client, job.batch)
        assert broken_results(requests.read_bytes().splitlines(), output, errors) == []
        assert texts(output) == undisturbed
        eventually(lambda: len([m for m in client.status().members if m.address.role == "dispatcher"]) == 2)


def still(client: dunlin.Client, batch: str) -> Any:
    """The job, from a dispatcher that answers."""
    for _ in range(100):
        try:
            return client.batches.get(batch)
        except DunlinError:
            continue
    raise AssertionError("no dispatcher answers")


def test_the_command_submits_follows_and_fetches(
    pair: ClusterProcess, requests: Path, command: Command, tmp_path: Path
) -> None:
    at = ("--endpoint", pair.grpc)
    begun = command("batch", "submit", str(requests), "--window", "2h", "--label", "who=tests", *at)
    assert begun.returncode == 0, begun.stderr
    batch = begun.stdout.strip()
    waited = command("batch", "wait", batch, "--poll", "0.2", *at)
    assert waited.returncode == 0, waited.stderr
    assert f"{LINES}/{LINES}, 2 failed" in waited.stderr
    assert "line 11: invalid_json_line" in waited.stderr
    output, errors = tmp_path / "output.jsonl", tmp_path / "errors.jsonl"
    files = ("--output", str(output), "--errors", str(errors))
    fetched = command("batch", "fetch", batch, *files, "--check", str(requests), *at)
    assert (fetched.returncode, fetched.stderr) == (0, "")
    assert len(output.read_bytes().splitlines()) == LINES - 2
    listed = command("batch", "status", *at)
    assert batch in listed.stdout
    status = json.loads(command("batch", "status", batch, "--json", *at).stdout)
    assert (status["status"], status["window_s"]) == ("completed", 7200)
    assert status["metadata"] == [{"name": "who", "value": "tests"}]
    late = command("batch", "cancel", batch, *at)
    assert late.returncode == 2
    assert "cannot be cancelled any more" in late.stderr


def test_a_cancelled_job_keeps_what_it_has(pair: ClusterProcess, command: Command) -> None:
    with dunlin.Client(pair.grpc) as client:
        job = client.batches.create(line(number, 300) for number in range(200))
        eventually(lambda: still(client, job.batch).completed > 0)
        cancelled = command("batch", "cancel", job.batch, "--endpoint", pair.grpc)
        assert cancelled.returncode == 0, cancelled.stderr
        ended = client.batches.wait(job.batch, poll_s=0.1)
        assert ended.status == "cancelled"
        assert ended.completed + ended.failed == ended.total == 200
        assert {one["error"]["code"] for one in client.batches.results(job.batch, errors=True)} == {"batch_cancelled"}
        assert len(list(client.batches.results(job.batch))) == ended.completed > 0
