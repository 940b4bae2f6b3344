"""`dunlin up` from the outside: what it starts, what it restarts, what it refuses, and that nothing is left behind."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dunlin
from benchmarks.harness.processes import wait_gone
from cli.launch.cluster_process import ClusterProcess
from cli.launch.cluster_state import read_state
from cli.launch.readiness import placeable
from dunlin.messages.fleet import FleetStatus, MemberStatus
from dunlin.runtime.procfs import command_line, descendants

pytestmark = pytest.mark.cluster

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def member(status: FleetStatus, name: str) -> MemberStatus:
    return next(one for one in status.members if one.address.name == name)


def is_back(status: FleetStatus, name: str, dead: int) -> bool:
    """Whether another process has the name of the dead one (for a while none may have) and all instances serve."""
    there = [one for one in status.members if one.address.name == name and one.connected and one.pid != dead]
    return bool(there) and sum(map(placeable, status.members)) == 3


def until(client: dunlin.Client, condition: Callable[[FleetStatus], bool], limit_s: float = 300.0) -> FleetStatus:
    deadline_s = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(dunlin.client.DunlinError):
            if condition(status := client.status()):
                return status
        assert time.monotonic() < deadline_s, "it did not come to pass"
        time.sleep(0.1)


def test_everything_is_there_and_says_so(cluster: ClusterProcess) -> None:
    with dunlin.Client(cluster.grpc) as client:
        members = client.status().members
    roles = sorted(one.address.role for one in members)
    assert roles == ["dispatcher", "global_manager", "instance", "instance", "instance", "kvstore", "monitor"]
    assert all(one.connected and one.address.incarnation > 0 for one in members)
    assert {one.pid for one in members} <= set(descendants(cluster.pid))


def test_a_second_cluster_in_the_same_place_is_refused(cluster: ClusterProcess, command: Command) -> None:
    done = command("up", "--data-dir", str(cluster.data_dir), "--http-port", "0", "--grpc-port", "0")
    assert done.returncode == 2
    assert "another cluster runs there" in done.stderr
    with dunlin.Client(cluster.grpc) as client:
        assert client.generate("still here", max_tokens=2, ignore_eos=True).tokens


def test_a_port_in_use_is_refused(command: Command, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = command("up", "--http-port", port, "--grpc-port", "0", "--data-dir", str(tmp_path))
    assert done.returncode == 2
    assert f"127.0.0.1:{port}: address already in use" in done.stderr


def break_nothing(model: Path) -> None:
    (model / "config.json").unlink()


def break_header(model: Path) -> None:
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(8)
        file.write(b"\xff" * 64)


def break_length(model: Path) -> None:
    os.truncate(model / "model.safetensors", (model / "model.safetensors").stat().st_size // 2)


def break_architecture(model: Path) -> None:
    config = model / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "OddForCausalLM").replace('"llama"', '"odd"'))


@pytest.mark.parametrize(
    ("harm", "complaint"),
    [
        (break_nothing, "config.json"),
        (break_header, "corrupt"),
        (break_length, "truncated"),
        (break_architecture, "OddForCausalLM is not supported"),
    ],
)
def test_a_broken_model_is_named_in_one_line(
    harm: Callable[[Path], None], complaint: str, command: Command, tmp_path: Path
) -> None:
    from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint

    model = tmp_path / "model"
    write_random_checkpoint(model, "llama", CheckpointShape(layers=1))
    harm(model)
    flags = ("--http-port", "0", "--grpc-port", "0", "--data-dir", str(tmp_path / "data"), "--instances", "1")
    done = command("up", "--model", str(model), *flags)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert str(model) in last
    assert complaint in last
    assert "Traceback" not in done.stderr
    assert read_state(tmp_path / "data") is None


@pytest.mark.parametrize("name", ["dispatcher-0", "monitor-0", "global-manager-0", "kvstore-0", "instance-0"])
def test_a_dead_service_comes_back_as_another_incarnation(cluster: ClusterProcess, name: str) -> None:
    with dunlin.Client(cluster.grpc) as client:
        before = member(client.status(), name)
        os.kill(before.pid, signal.SIGKILL)
        status = until(client, lambda s: is_back(s, name, before.pid))
        assert member(status, name).address.incarnation > before.address.incarnation
        assert client.generate("after", max_tokens=4, ignore_eos=True).tokens


def test_etcd_comes_back(cluster: ClusterProcess) -> None:
    etcd = next(pid for pid in descendants(cluster.pid) if command_line(pid).partition(" ")[0].endswith("/etcd"))
    os.kill(etcd, signal.SIGKILL)
    with dunlin.Client(cluster.grpc) as client:
        assert client.generate("without etcd", max_tokens=4, ignore_eos=True).tokens
        victim = member(client.status(), "instance-1")
        os.kill(victim.pid, signal.SIGKILL)
        until(client, lambda s: is_back(s, "instance-1", victim.pid))


def test_nothing_is_left_behind() -> None:
    with ClusterProcess("--instances", "2") as own:
        everybody = descendants(own.pid)
        with dunlin.Client(own.grpc) as client:
            instances = [one for one in client.status().members if one.instance is not None]
        os.kill(instances[0].pid, signal.SIGSTOP)
        assert instances[1].instance is not None
        os.kill(instances[1].instance.engine_pid, signal.SIGSTOP)
        assert own.stop() == 0
        assert wait_gone(everybody) == []
        assert read_state(own.data_dir) is None
    assert len(everybody) >= 8


def test_nothing_outlives_a_killed_supervisor_and_its_place_can_be_used_again_until_ctrl_c() -> None:
    with ClusterProcess("--instances", "1") as own:
        everybody = descendants(own.pid)
        os.kill(own.pid, signal.SIGKILL)
        assert wait_gone(everybody) == []
        with ClusterProcess("--instances", "1", data_dir=own.data_dir) as again:
            with dunlin.Client(again.grpc) as client:
                assert client.generate("again", max_tokens=2, ignore_eos=True).tokens
                everybody = descendants(again.pid)
                assert {one.pid for one in client.status().members} <= set(everybody)
            os.kill(again.pid, signal.SIGINT)
            assert wait_gone([again.pid, *everybody]) == []
            assert again.stop() == 0
