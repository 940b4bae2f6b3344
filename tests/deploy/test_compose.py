"""The compose files start every role, with flags that its own parser takes, health checks that reach it, and TLS."""

import argparse
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.commands.operate.serve import ROLES
from cli.main import make_parser
from dunlin.wire.security import TlsIdentity, is_certificate_of
from tests.deploy.commands import parsed

SAME_NODE = ("kvstore", "instance-0", "instance-1")
NO_ROLE = ("etcd", "node")
TLS_AT = "/etc/dunlin/tls"


def loaded(path: Path, **variables: str) -> dict[str, Any]:
    """The file as Compose reads it when only `variables` are set."""

    def value(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        assert name in variables or kind == "-", f"{name} must be set: {rest}"
        return variables.get(name, rest)

    text = re.sub(r"\$\{(\w+):([-?])([^}]*)\}", value, path.read_text())
    # Imported by name: the package has no types of its own.
    whole: dict[str, Any] = importlib.import_module("yaml").safe_load(text)
    return whole


@pytest.fixture(scope="session")
def compose(root: Path) -> dict[str, Any]:
    return loaded(root / "deploy/compose.yaml")


@pytest.fixture(scope="session")
def tls(root: Path) -> dict[str, Any]:
    return loaded(root / "deploy/compose.tls.yaml", DUNLIN_TLS="/srv/tls")


def compose_commands(compose: dict[str, Any]) -> dict[str, tuple[str, argparse.Namespace]]:
    commands = {name: each["command"] for name, each in compose["services"].items() if name not in NO_ROLE}
    return {name: parsed(shlex.split(command)) for name, command in commands.items()}


def test_the_files_of_batch_jobs_outlive_the_container_as_their_records_do(compose: dict[str, Any]) -> None:
    """A volume without a name ends with its container."""
    named = [each.split(":") for each in compose["services"]["dispatcher"]["volumes"]]
    assert ["dispatcher-data", "/var/lib/dunlin"] in named
    assert "etcd-data:/etcd-data" in compose["services"]["etcd"]["volumes"]
    assert {"dispatcher-data", "etcd-data"} <= compose["volumes"].keys()


def test_compose_starts_every_role_and_instances_with_a_neighbour(compose: dict[str, Any]) -> None:
    roles = [role for role, _ in compose_commands(compose).values()]
    assert set(roles) == set(ROLES)
    assert roles.count("instance") == 2


def test_compose_names_what_the_others_dial(compose: dict[str, Any]) -> None:
    for name, (_, arguments) in compose_commands(compose).items():
        assert arguments.advertise == name
        assert arguments.listen.startswith("0.0.0.0:")
        assert arguments.etcd == ("etcd:2379",)


def test_compose_lets_instances_open_the_memory_of_their_kvstore(compose: dict[str, Any]) -> None:
    commands = compose_commands(compose)
    for name in SAME_NODE:
        assert compose["services"][name]["pid"] == "service:node"
        assert "user" not in compose["services"][name]
    assert {commands[name][1].node for name in SAME_NODE} == {"node-a"}


def test_compose_publishes_doors_that_services_listen_on(compose: dict[str, Any]) -> None:
    commands = compose_commands(compose)
    for name, each in compose["services"].items():
        for published in each.get("ports", ()):
            host, _, inner = published.rpartition(":")
            assert host.startswith("127.0.0.1:"), "there is no authentication"
            assert inner in doors(commands[name][1])


def doors(arguments: argparse.Namespace) -> set[str]:
    flags = vars(arguments)
    http = (flags["http"][1],) if "http" in flags else ()
    return {arguments.listen.rpartition(":")[2], str(flags.get("metrics_port")), *map(str, http)}


def test_compose_probes_every_service_at_its_own_port_and_role(compose: dict[str, Any]) -> None:
    for name, (role, arguments) in compose_commands(compose).items():
        probe = make_parser().parse_args(compose["services"][name]["healthcheck"]["test"][2:])
        assert (probe.address, probe.role) == (f"127.0.0.1:{arguments.listen.rpartition(':')[2]}", role)
    assert "healthcheck" in compose["services"]["etcd"]


def test_compose_runs_a_model_and_keys_that_variables_name(root: Path) -> None:
    keys = "--keys /etc/dunlin/keys/keys.json"
    chosen = {"DUNLIN_MODEL": "/models/llama", "DUNLIN_MODEL_DIR": "/srv/models", "DUNLIN_KEYS": "/srv/keys"}
    compose = loaded(root / "deploy/compose.yaml", **chosen, DUNLIN_DISPATCHER_FLAGS=keys)
    commands = compose_commands(compose)
    for name in ("dispatcher", "instance-0", "instance-1"):
        assert commands[name][1].model == "/models/llama"
        assert "/srv/models:/models:ro" in compose["services"][name]["volumes"]
    assert str(commands["dispatcher"][1].keys) == "/etc/dunlin/keys/keys.json"
    assert "/srv/keys:/etc/dunlin/keys:ro" in compose["services"]["dispatcher"]["volumes"]


def test_compose_explains_every_variable(root: Path) -> None:
    text = (root / "deploy/compose.yaml").read_text()
    comment = "".join(line for line in text.splitlines() if line.startswith("#"))
    assert set(re.findall(r"DUNLIN_\w+", comment)) == set(re.findall(r"\$\{(\w+)", text))


def test_with_tls_the_commands_are_the_same_but_for_the_certificates(
    compose: dict[str, Any], tls: dict[str, Any]
) -> None:
    secured = compose_commands(tls)
    for name, (role, arguments) in compose_commands(compose).items():
        assert secured[name][0] == role
        assert vars(secured[name][1]) == {**vars(arguments), "tls_dir": Path(TLS_AT)}


def test_with_tls_each_container_gets_its_own_certificates_and_probes_with_them(
    compose: dict[str, Any], tls: dict[str, Any]
) -> None:
    commands = compose_commands(tls)
    for name in ("etcd", *commands):
        own = commands[name][1].name if name in commands else name
        assert tls["services"][name]["volumes"] == [f"/srv/tls/{own}:{TLS_AT}:ro"]
    for name in commands:
        plain = compose["services"][name]["healthcheck"]["test"]
        assert tls["services"][name]["healthcheck"]["test"] == [*plain, "--tls-dir", TLS_AT]


def test_with_tls_etcd_and_its_health_check_speak_nothing_else(compose: dict[str, Any], tls: dict[str, Any]) -> None:
    environment = tls["services"]["etcd"]["environment"]
    assert environment["ETCD_CLIENT_CERT_AUTH"] == "true"
    plain = compose["services"]["etcd"]["environment"]
    assert {name: url.replace("http:", "https:") for name, url in plain.items()}.items() <= environment.items()


def test_the_head_of_the_file_issues_the_certificates_that_it_mounts(
    root: Path, tls: dict[str, Any], tmp_path: Path
) -> None:
    lines = (root / "deploy/compose.tls.yaml").read_text().splitlines()
    comment = [line[4:] for line in lines if line.startswith("#   ")]
    script = "\n".join(line for line in comment if not re.match(r"(sudo|DUNLIN_TLS|dunlin generate)", line))
    shim = 'dunlin() { "$PYTHON" -m cli.main "$@"; }'
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(root)}
    command = ["bash", "-euc", f"{shim}\n{script}"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=110)
    for role, arguments in compose_commands(tls).values():
        assert is_certificate_of(TlsIdentity.load(tmp_path / "tls" / arguments.name).names, role, arguments.name)
    assert {path.name for path in (tmp_path / "tls").iterdir()} > {"etcd", "me"}
    assert not list((tmp_path / "tls").rglob("ca-key.pem"))


def test_compose_takes_the_file(root: Path) -> None:
    for tool in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(tool[0])
            and subprocess.run([*tool, "version"], capture_output=True, check=False).returncode == 0
        ):
            for names in (["compose.yaml"], ["compose.yaml", "compose.tls.yaml"]):
                files = [word for name in names for word in ("-f", str(root / "deploy" / name))]
                environment = {**os.environ, "DUNLIN_TLS": "/srv/tls"}
                done = subprocess.run(
                    [*tool, *files, "config", "--quiet"],
                    env=environment, capture_output=True, text=True, timeout=300, check=False,
                )  # fmt: skip
                assert (done.returncode, done.stderr) == (0, "")
            return
    pytest.skip("no docker compose here")
