"""The unit files start what exists: every role, with flags that its own parser takes; the image holds it all."""

import argparse
import contextlib
import importlib
import json
import re
import shlex
import shutil
import socketserver
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from cli.commands.operate.serve import ROLES
from cli.commands.simulate.cases import make_cases
from cli.main import make_parser
from dunlin.config.resolve import resolve
from dunlin.config.sources import from_all, from_file
from dunlin.policies.presets import DEFAULT_PRESET
from services.settings import TABLES
from simulator.study.run_case import cluster_of
from tests.deploy.commands import parsed

UNITS = "deploy/systemd"
SETTINGS = "deploy/dunlin.toml"
COMMON = "dunlin-.service.d/10-common.conf"
# What would keep an instance from opening the kvstore's memory, or the kvstore from seeing how much there is.
HIDES_THE_TIER = {"PrivateUsers", "PrivatePIDs", "DynamicUser", "ProcSubset"}


def settings(text: str) -> dict[str, list[str]]:
    """Key to values of a unit file, sections ignored."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def services(root: Path) -> dict[str, dict[str, list[str]]]:
    return {path.name: settings(path.read_text()) for path in sorted((root / UNITS).glob("*.service"))}


def environment(root: Path) -> dict[str, str]:
    return {key: values[-1] for key, values in settings((root / UNITS / "dunlin.env").read_text()).items()}


def command_of(unit: dict[str, list[str]], variables: dict[str, str]) -> list[str]:
    """ExecStart as systemd would expand it: `${A}` inside a word, `$A` into words of its own, `%x` into something."""
    words = []
    for word in unit["ExecStart"][0].split():
        inside = re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], word)
        inside = inside.replace("%S", "/var/lib").replace("%H", "host").replace("%i", "0")
        assert "%" not in inside
        words += variables[word[1:]].split() if re.fullmatch(r"\$\w+", word) else [inside]
    return words


def unit_commands(root: Path) -> dict[str, tuple[str, argparse.Namespace]]:
    variables = environment(root)
    return {name: parsed(command_of(unit, variables)[1:]) for name, unit in services(root).items()}


def test_there_is_a_unit_for_every_role_and_each_starts(root: Path) -> None:
    commands = unit_commands(root)
    assert sorted(role for role, _ in commands.values()) == sorted(ROLES)
    for _, arguments in commands.values():
        assert arguments.etcd == ("127.0.0.1:2379",)
        assert arguments.data_dir == Path("/var/lib/dunlin")
        assert arguments.config == [Path("/etc/dunlin/dunlin.toml")]


def test_instances_of_a_node_get_names_and_ports_of_their_own(root: Path) -> None:
    _, arguments = unit_commands(root)["dunlin-instance@.service"]
    assert (arguments.name, arguments.listen) == ("instance-host-0", "127.0.0.1:0")


def test_units_give_each_fixed_port_once(root: Path) -> None:
    commands = unit_commands(root).values()
    ports = [int(arguments.listen.rpartition(":")[2]) for _, arguments in commands]
    ports += [arguments.http[1] for role, arguments in commands if role == "dispatcher"]
    ports += [arguments.metrics_port for role, arguments in commands if role == "monitor"]
    fixed = [port for port in ports if port]
    assert len(fixed) == 6
    assert len(set(fixed)) == len(fixed)


def test_units_take_each_variable_from_the_example_file(root: Path) -> None:
    texts = [path.read_text() for path in (root / UNITS).rglob("*") if path.suffix in (".service", ".conf")]
    used = {name for text in texts for name in re.findall(r"\$\{?([A-Z]\w+)\}?", text)}
    assert used == set(environment(root))


def test_every_unit_starts_with_the_settings_of_the_three_nodes(root: Path) -> None:
    whole = resolve(TABLES, from_file(root / SETTINGS))
    for role, arguments in unit_commands(root).values():
        arguments.config = [root / SETTINGS]
        settings = importlib.import_module(f"services.{role}.__main__").settings_of(arguments)
        held = {name: value for name, value in settings.given().items() if not name.startswith("cluster.")}
        assert held.items() <= whole.given().items(), role
        for name, table in TABLES.items():
            if name in role:
                settings.configure(name, table)
    # Several nodes compute, so a second copy has a place.
    assert whole["kvstore.exchange.replicate"]


def test_the_settings_of_the_three_nodes_have_the_default_preset(root: Path) -> None:
    assert resolve(TABLES, from_file(root / SETTINGS))["cluster.preset"] == DEFAULT_PRESET


def test_the_manual_says_for_which_names_units_need_certificates(root: Path) -> None:
    """A service starts with a certificate of its own name alone."""
    manual = (root / "docs/operating.md").read_text()
    for unit in services(root).values():
        (name,) = re.findall(r"--name=(\S+)", unit["ExecStart"][0])
        assert f"`{name.replace('%H', 'HOSTNAME').replace('%i', 'INDEX')}`" in manual


def test_the_settings_of_the_three_nodes_can_be_simulated(root: Path) -> None:
    words = ["sim", "--workload", "poisson:rate=1,duration=1", "--instances", "4", "--nodes", "2"]
    (case,) = make_cases(make_parser().parse_args([*words, "--config", str(root / SETTINGS)]), {})
    spec = cluster_of(case)
    assert spec.kvstore_config("b").tier.capacity_bytes == 256 << 20
    assert spec.kvstore_config("b").exchange.replicate


def test_the_variables_of_one_node_are_settings(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the example file that are commented out, and those in the comments of the settings."""
    texts = [(root / UNITS / "dunlin.env").read_text(), (root / SETTINGS).read_text()]
    found = [line for text in texts for line in re.findall(r"DUNLIN_\w+__\w+=\w+", text)]
    assert len(found) >= 2
    for line in found:
        monkeypatch.setenv(*line.split("=", 1))
    assert resolve(TABLES, from_all([], []))["kvstore.tier.capacity_bytes"] == 16 << 30


def test_what_cannot_start_is_not_started_again(root: Path) -> None:
    common = settings((root / UNITS / COMMON).read_text())
    assert common["Restart"] == ["on-failure"]
    assert common["RestartPreventExitStatus"] == ["2"]
    # A wait for etcd that fails must take longer than the window for failed starts holds, or waiting would end too.
    waits_s = float(common["ExecStartPre"][0].split()[-2])
    assert waits_s * int(common["StartLimitBurst"][0]) > float(common["StartLimitIntervalSec"][0])
    assert waits_s < float(common["TimeoutStartSec"][0])


def test_a_unit_has_time_to_take_its_leave(root: Path) -> None:
    from dunlin.wire.service.options import ServiceOptions

    common = settings((root / UNITS / COMMON).read_text())
    assert float(common["TimeoutStopSec"][0]) > 2 * ServiceOptions("monitor", "m", ()).stop_timeout_s


def test_kvstore_and_instances_are_one_user_and_see_each_other(root: Path) -> None:
    common = settings((root / UNITS / COMMON).read_text())
    assert common["User"] == common["Group"] == ["dunlin"]
    assert not HIDES_THE_TIER & set(common)
    for name, unit in services(root).items():
        assert not (HIDES_THE_TIER | {"User", "Group"}) & set(unit), name


def test_the_image_copies_what_the_wheel_is_made_of(root: Path) -> None:
    lines = (root / "deploy/Dockerfile").read_text().splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    allowed = {
        line[1:] for line in (root / "deploy/Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    assert set(copied) == allowed
    assert all((root / name).exists() for name in copied)


def test_the_image_holds_every_package_of_the_wheel(root: Path) -> None:
    packages = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = re.findall(r"^COPY (\w+) \1$", (root / "deploy/Dockerfile").read_text(), re.MULTILINE)
    assert {*packages["only-include"], "proto"} == set(copied)


def test_the_manual_gives_commands_that_the_services_take(root: Path) -> None:
    lines = (root / "docs/operating.md").read_text().splitlines()
    commands = [parsed(shlex.split(line)[1:]) for line in lines if line.startswith("dunlin serve ")]
    assert {role for role, _ in commands} == set(ROLES)
    assert all(arguments.name and arguments.etcd for _, arguments in commands)


def test_the_manual_explains_flags_that_exist(root: Path) -> None:
    text = (root / "docs/operating.md").read_text()
    rows = re.findall(r"^\| (all|\w+) \| (`--[^|]+) \|", text, re.MULTILINE)
    assert len(rows) > 10
    for role, flags in rows:
        module = importlib.import_module(f"services.{'monitor' if role == 'all' else role}.__main__")
        for flag in re.findall(r"--[\w-]+", flags):
            assert flag in module.parser().format_help(), f"{role} {flag}"


def installed(root: Path, folder: Path) -> list[str]:
    """The units in `folder` with commands that exist here, and the names to verify."""
    shutil.copytree(root / UNITS, folder, dirs_exist_ok=True)
    for path in (*folder.glob("*.service"), folder / COMMON):
        path.write_text(re.sub(r"/opt/dunlin/bin/\w+", "/bin/true", path.read_text()))
    names = [path.name.replace("@.", "@0.") for path in sorted(folder.glob("*.service"))]
    return [str(folder / name) for name in (*names, "dunlin.target")]


def verify(units: list[str]) -> "subprocess.CompletedProcess[str]":
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    return subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, timeout=300, check=False
    )


def test_systemd_takes_the_units(root: Path, tmp_path: Path) -> None:
    done = verify(installed(root, tmp_path / "units"))
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_reads_the_common_settings_for_every_service(root: Path, tmp_path: Path) -> None:
    units = installed(root, tmp_path / "units")
    (tmp_path / "units" / COMMON).write_text("[Service]\nKillMode=planted\n")
    complaints = verify(units).stderr
    assert complaints.count("planted") >= 1
    for unit in units[:-1]:
        assert "planted" in verify([unit]).stderr, unit


@contextlib.contextmanager
def health(status: int, said: object) -> Iterator[str]:
    """An etcd's `/health`; yields its `host:port`."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(said).encode() if self.path == "/health" else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with socketserver.TCPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def await_etcd(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", str(root / UNITS / "await_etcd.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_waiting_for_etcd_ends_with_the_first_healthy_one(root: Path) -> None:
    with health(200, {"health": "true"}) as endpoint:
        assert await_etcd(root, f"127.0.0.1:1, http://{endpoint}", "20").returncode == 0


@pytest.mark.parametrize(("status", "said"), [(503, {"health": "false"}), (200, {"health": "false"}), (200, ["true"])])
def test_waiting_for_a_sick_etcd_ends_with_what_systemd_tries_again(root: Path, status: int, said: object) -> None:
    with health(status, said) as endpoint:
        done = await_etcd(root, endpoint, "0.2")
    assert done.returncode == 1
    assert endpoint in done.stderr


def test_waiting_for_nothing_says_what_is_missing(root: Path) -> None:
    done = await_etcd(root, "", "1")
    assert done.returncode == 1
    assert "DUNLIN_ETCD" in done.stderr
