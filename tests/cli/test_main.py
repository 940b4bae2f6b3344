"""The command line as a user meets it: help, exit codes, one clear line for every mistake. No cluster runs."""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import main, make_parser
from dunlin.policies.presets import DEFAULT_PRESET
from services.dispatcher.config import DispatcherConfig
from services.instance.config import InstanceConfig
from services.instance.process_config import DEFAULT_KV_BYTES, EngineConfig
from services.kvstore.config import KvstoreConfig

COMMANDS = ("up", "generate", "status", "explain", "replay", "model", "serve", "version")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster of the user's is found."""
    monkeypatch.setenv("DUNLIN_DATA_DIR", str(tmp_path / "none"))


def exit_code(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(command, "--help") == 0
    assert f"dunlin {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["up", "generate", "status", "explain", "replay", "serve"])
def test_help_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code(command, "--help")
    assert f"  dunlin {command} " in capsys.readouterr().out


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    said = capsys.readouterr().out
    assert all(f"    {command} " in said for command in COMMANDS)


@pytest.mark.parametrize(
    "command", [("generate", "hello"), ("status",), ("status", "--json"), ("explain", "req-1-1")], ids=" ".join
)
def test_without_a_cluster_it_says_how_to_start_one(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*command) == 3
    said = capsys.readouterr()
    assert "start one with `dunlin up`" in said.err
    assert said.out == ""
    assert said.err.count("\n") == 1


def test_an_endpoint_without_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("status", "--endpoint", "127.0.0.1:1") == 3
    said = capsys.readouterr().err
    assert "127.0.0.1:1" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("up", "--instances", "0"), "between 1 and 64"),
        (("up", "--http-port", "70000"), "between 0 and 65535"),
        (("up", "--model", "/no/such"), "/no/such: no such directory"),
        (("up", "--etcd", "127.0.0.1:1", "--http-port", "0", "--grpc-port", "0"), "etcd unreachable"),
        (("generate",), "required"),
        (("generate", ""), "the prompt is empty"),
        (("generate", "a", "--temperature", "nan"), "at least 0"),
        (("generate", "a", "--max-tokens", "-1"), "1 or more"),
        (("status", "--endpoint", "a:1,localhost"), "'localhost' is not HOST:PORT"),
        (("health", "localhost"), "'localhost' is not HOST:PORT"),
        (("generate", "--tokens", "1,x"), "not a list of token ids"),
        (("replay", "/no/such.csv"), "/no/such.csv: cannot be read"),
        (("replay", "t.csv", "--speed", "0"), "above 0"),
        (("model", "init", "/dev/null/x"), "/dev/null/x"),
        (("serve", "nobody"), "invalid choice"),
        (("frobnicate",), "invalid choice"),
        (("staus",), "did you mean status?"),
        (("up", "--isntances", "3"), "dunlin up: unknown option --isntances: did you mean --instances?"),
        (("up", "--transport=socket"), "did you mean sockets?"),
        (("model", "init", "x", "--laeyrs=1"), "dunlin model init: unknown option --laeyrs: did you mean --layers?"),
        (("serve", "instance", "--modle", "x"), "dunlin serve instance: unknown option --modle: did you mean --model?"),
        (("status", "now"), "unexpected argument 'now'"),
        (("up", "--host", "203.0.113.7"), "--host 203.0.113.7: this machine has no such address; choose of 127.0.0.1"),
        (("up", "--host", "no such host"), "no such host: no such name or address"),
        (("up", "--model-name", "two\nlines"), "give printable text"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_mistake_costs_exit_code_2_and_says_what(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert said.out == ""


def test_a_bad_row_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n1,-5,1\n")
    assert exit_code("replay", str(tmp_path / "t.csv")) == 2
    assert "t.csv: line 3: input_tokens" in capsys.readouterr().err


def test_a_checkpoint_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--layers", "1", "--hidden", "16", "--heads", "2", "--kv-heads", "1", "--intermediate", "16")
    command = ("model", "init", str(tmp_path / "m"), *sizes)
    assert exit_code(*command) == 0
    assert "llama, 1 layers of 16" in capsys.readouterr().out
    assert exit_code(*command) == 2
    assert "already holds a checkpoint" in capsys.readouterr().err


def test_serve_hands_its_options_to_the_role(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("serve", "kvstore", "--help") == 0
    assert "--tier-bytes" in capsys.readouterr().out


def test_the_defaults_that_help_names_are_the_services_own(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code("up", "--help")
    said = " ".join(capsys.readouterr().out.split())
    assert f"0: none (default: {InstanceConfig().checkpoint.engine_share:g})" in said
    assert f"longer for its turn (default: {DispatcherConfig().admission.max_wait_s:g})" in said
    assert f"KV of each node (default: {KvstoreConfig().tier.capacity_bytes >> 20})" in said
    assert f"(default: what {DEFAULT_KV_BYTES >> 20} MiB hold; on a GPU" in said
    assert f"and KV in the rest (default: {EngineConfig().gpu_memory_utilization:g})" in said
    assert f"the choice of policies (default: {DEFAULT_PRESET})" in said
    exit_code("sim", "--help")
    assert f"or `all` (default: {DEFAULT_PRESET})" in " ".join(capsys.readouterr().out.split())


def test_every_option_is_explained() -> None:
    for parser in parsers(make_parser()):
        for action in parser._actions:
            explained = action.help or isinstance(action, argparse._SubParsersAction)
            assert explained, f"{parser.prog} {action.option_strings or action.dest} has no help"


def parsers(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from parsers(one)


def test_importing_the_command_line_is_cheap() -> None:
    code = "import sys, cli.main; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "grpc", "google", "services", "aiohttp"} & set(done.stdout.split())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import dunlin

    assert exit_code("version") == 0
    assert capsys.readouterr().out == f"{dunlin.__version__}\n"
