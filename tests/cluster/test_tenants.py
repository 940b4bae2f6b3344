"""A whole cluster that asks for API keys, on TLS: clients need a key and no certificate, and quotas hold."""

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import dunlin
from cli.launch.cluster_process import ClusterProcess
from cli.main import main
from dunlin.auth.tenants import Tenant, format_tenants, hash_key, parse_tenants
from dunlin.client import DunlinError, NotAuthenticated, QuotaExceeded
from tests.cluster.conftest import Command, eventually

pytestmark = pytest.mark.cluster

KEYS = {"acme": "dk-acme-0123456789", "small": "dk-small-0123456789"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    tenants = {
        "acme": {"keys": [hash_key(KEYS["acme"])]},
        "small": {"keys": [hash_key(KEYS["small"])], "running": 2, "tokens_per_minute": 200},
    }
    path.write_text(json.dumps({"tenants": tenants}))
    return path


@pytest.fixture(scope="module")
def cluster(keys: Path) -> Iterator[ClusterProcess]:
    with ClusterProcess("--tls", "--keys", str(keys), "--instances", "1", "--tier-mib", "64") as made:
        yield made


@pytest.fixture(scope="module")
def bare(cluster: ClusterProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a tenant is given besides its key: the CA."""
    directory = tmp_path_factory.mktemp("bare")
    (directory / "ca.pem").write_bytes((cluster.data_dir / "tls" / "client" / "ca.pem").read_bytes())
    return directory


def answers(cluster: ClusterProcess, bare: Path, key: str) -> bool:
    with dunlin.Client(cluster.grpc, tls_dir=bare, api_key=key) as client:
        try:
            return bool(client.info().model)
        except DunlinError:
            return False


def test_a_key_and_the_ca_are_enough(cluster: ClusterProcess, bare: Path) -> None:
    with dunlin.Client(cluster.grpc, tls_dir=bare, api_key=KEYS["acme"]) as client:
        assert client.chat([("user", "hello")], max_tokens=4).tokens
        with pytest.raises(DunlinError):
            client.status()  # the monitor is the operators', who have certificates
    with dunlin.Client(cluster.grpc, tls_dir=bare, api_key="") as client, pytest.raises(NotAuthenticated):
        client.generate("hello", max_tokens=4)


def post(cluster: ClusterProcess, bare: Path, key: str) -> Any:
    body = json.dumps({"prompt": "hello", "max_tokens": 4}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{cluster.http}/v1/completions", body, headers)
    context = ssl.create_default_context(cafile=str(bare / "ca.pem"))
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(request, timeout=300) as answer:
        return json.load(answer)


def test_http_asks_for_a_key_too(cluster: ClusterProcess, bare: Path) -> None:
    assert post(cluster, bare, KEYS["acme"])["usage"]["completion_tokens"] == 4
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(cluster, bare, "dk-wrong")
    with caught.value as answer:
        assert answer.code == 401
        assert json.load(answer)["error"]["code"] == "invalid_api_key"


def test_the_command_line_takes_its_key_from_the_environment(
    cluster: ClusterProcess, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--data-dir", str(cluster.data_dir))
    monkeypatch.delenv("DUNLIN_API_KEY", raising=False)
    assert "an API key is needed" in command("generate", "hi", "--max-tokens", "4", *where).stderr
    assert "dispatcher-0" in command("status", *where).stdout  # asks the monitor, by its certificate
    monkeypatch.setenv("DUNLIN_API_KEY", KEYS["acme"])
    assert command("generate", "hi", "--max-tokens", "4", *where).returncode == 0


def test_a_load_goes_through_both_doors(
    cluster: ClusterProcess, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DUNLIN_API_KEY", KEYS["acme"])
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0.0,8,3\n0.1,8,3\n")
    for door in ("grpc", "http"):
        done = command("replay", str(trace), "--door", door, "--data-dir", str(cluster.data_dir))
        assert "2 of 2 requests completed" in done.stdout, done.stderr


def test_quotas_hold_under_concurrency(cluster: ClusterProcess, bare: Path) -> None:
    """Twelve at once, of 30 tokens each (2 in the prompt): two may run, and six fit into a minute's 200."""

    def ask(_: int) -> str:
        with dunlin.Client(cluster.grpc, tls_dir=bare, api_key=KEYS["small"]) as client:
            try:
                client.generate([5, 6], max_tokens=28, ignore_eos=True)
                return "served"
            except QuotaExceeded as error:
                return "running" if "running" in str(error) else "tokens"

    began_s = time.monotonic()
    with ThreadPoolExecutor(12) as threads:
        seen = list(threads.map(ask, range(12)))
    while "tokens" not in seen:  # as much as a slow machine may serve in the meantime
        seen.append(ask(0))
    filled = (time.monotonic() - began_s) * 200 / 60
    assert 2 <= seen.count("served") <= (200 + filled) / 30


def test_the_file_is_read_anew_and_a_bad_one_changes_nothing(
    cluster: ClusterProcess, bare: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "add", "--keys", str(keys), "--tenant", "late"]) == 0
    late = capsys.readouterr().out.strip()
    eventually(lambda: answers(cluster, bare, late))
    good = keys.read_bytes()
    keys.write_text("{")
    log = cluster.data_dir / "logs" / "dispatcher-0.log"
    eventually(lambda: "line 1: no JSON" in log.read_text())
    assert answers(cluster, bare, late)
    left: tuple[Tenant, ...] = tuple(one for one in parse_tenants(good, is_toml=False) if one.name != "late")
    keys.write_text(format_tenants(left))
    eventually(lambda: not answers(cluster, bare, late))
    assert answers(cluster, bare, KEYS["acme"])
    assert late not in log.read_text()
