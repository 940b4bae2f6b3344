"""The commands against a running cluster."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.launch.cluster_process import ClusterProcess
from dunlin.engine.device.names import computed_by
from dunlin.policies.presets import DEFAULT_PRESET
from dunlin.workload.loadgen.run_record import read_run
from dunlin.workload.traffic.arrival_processes import arrivals_until, poisson_arrivals
from simulator.study.recorded_cluster import recorded_cluster

pytestmark = pytest.mark.cluster

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def here(cluster: ClusterProcess) -> tuple[str, str]:
    return "--data-dir", str(cluster.data_dir)


def test_generate_prints_the_text_and_names_the_request(cluster: ClusterProcess, command: Command) -> None:
    done = command("generate", "Once upon a time", "--max-tokens", "8", "--ignore-eos", *here(cluster))
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "req-" in done.stderr


def test_a_seed_gives_the_same_text_in_json(cluster: ClusterProcess, command: Command) -> None:
    line = ("generate", "Once", "--max-tokens", "8", "--seed", "3", "--ignore-eos", "--json", *here(cluster))
    first, second = (json.loads(command(*line).stdout) for _ in range(2))
    assert len(first["tokens"]) == 8
    assert (first["text"], first["tokens"]) == (second["text"], second["tokens"])
    assert first["request"] != second["request"]


def test_chat_and_tokens(cluster: ClusterProcess, command: Command) -> None:
    assert command("generate", "--chat", "Hello!", "--max-tokens", "4", *here(cluster)).returncode == 0
    done = command("generate", "--tokens", "5,6,7", "--max-tokens", "4", "--ignore-eos", "--json", *here(cluster))
    assert len(json.loads(done.stdout)["tokens"]) == 4


def test_the_cluster_says_no_with_exit_code_1(cluster: ClusterProcess, command: Command) -> None:
    done = command("generate", "--tokens", "5,99999999", *here(cluster))
    assert done.returncode in (1, 2)
    assert "99999999" in done.stderr
    assert "Traceback" not in done.stderr


def test_status_names_every_process(cluster: ClusterProcess, command: Command) -> None:
    told = json.loads(command("status", "--json", *here(cluster)).stdout)
    instances = [one for one in told["members"] if one["address"]["role"] == "instance"]
    assert len(instances) == 3
    assert all(one["pid"] > 0 and one["instance"]["engine_pid"] > 0 for one in instances)
    text = command("status", *here(cluster)).stdout
    assert all(one["address"]["name"] in text for one in told["members"])


def test_explain_tells_who_ran_it_and_why(cluster: ClusterProcess, command: Command) -> None:
    done = command("generate", "Why?", "--max-tokens", "4", "--ignore-eos", "--json", *here(cluster))
    request = json.loads(done.stdout)["request"]
    told = command("explain", request, *here(cluster))
    assert told.returncode == 0
    assert "instance-" in told.stdout
    assert json.loads(command("explain", request, "--json", *here(cluster)).stdout)


def test_nothing_is_known_of_a_request_that_never_was(cluster: ClusterProcess, command: Command) -> None:
    done = command("explain", "req-ffff-ffff", *here(cluster))
    assert done.returncode == 1
    assert "nothing is recorded about req-ffff-ffff" in done.stderr
    assert command("explain", "nonsense", *here(cluster)).returncode == 2


@pytest.mark.parametrize("door", ["grpc", "http"])
def test_replay_reports(cluster: ClusterProcess, command: Command, tmp_path: Path, door: str) -> None:
    rows = "".join(f"{at_s},{20 + i % 40},6\n" for i, at_s in enumerate(arrivals_until(poisson_arrivals(8, seed=2), 4)))
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows + "60,1,1\n")
    line = ("replay", str(tmp_path / "trace.csv"), "--duration", "4", "--door", door, *here(cluster))
    kept = ("--save", str(tmp_path / "run.json"), "--record", str(tmp_path / "run.jsonl"), "--slo", "ttft=60")
    done = command(*line, "--json", *kept)
    told = json.loads(done.stdout)
    assert (done.returncode, told["errors"], told["refused"]) == (0, 0, 0)
    assert told["completed"] == told["requests"] == rows.count("\n")
    assert told["output_tokens"] == 6 * told["requests"]
    saved = json.loads((tmp_path / "run.json").read_text())
    assert len(saved["requests"]) == told["requests"]
    assert told["slo_attainment"] == 1.0
    run = read_run(tmp_path / "run.jsonl")
    assert [len(record.token_s) for record in run.records] == [6] * told["requests"]
    assert run.facts["launched"]["preset"] == DEFAULT_PRESET
    assert run.facts["after"]["members"]
    assert run.facts["processor"] == computed_by("cpu")
    again = recorded_cluster(run.facts)
    assert (again.instances, again.preset) == (run.facts["launched"]["instances"], DEFAULT_PRESET)
    assert again.slots >= again.max_positions > 0
    assert again.tier_bytes > 0
    assert run.facts["asked"]["workload"] == str(tmp_path / "trace.csv")
