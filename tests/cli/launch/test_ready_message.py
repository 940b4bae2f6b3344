"""What `dunlin up` says when it serves."""

import dataclasses
import shlex
from typing import Any

import pytest

from cli.launch.cluster_state import ClusterState
from cli.launch.ready_message import hints, ready_line


@pytest.fixture(autouse=True)
def default_data_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUNLIN_DATA_DIR", "/d")


def cluster(**changes: Any) -> ClusterState:
    made = ClusterState(
        pid=1,
        http="http://h:8000,http://h:8001",
        grpc="h:7070,h:7071",
        monitor="h:1",
        metrics="http://h:2/metrics",
        etcd="h:3",
        data_dir="/d",
        model="/models/m",
        instances=2,
        deterministic=False,
        started_at_s=0.0,
        model_name="my model",
    )
    return dataclasses.replace(made, **changes)


def words(line: str) -> dict[str, str]:
    first, *rest = shlex.split(line)
    assert first == "ready"
    return dict(word.split("=", 1) for word in rest)


def test_the_ready_line_names_model_doors_and_metrics() -> None:
    said = {"model": "my model", "http": "http://h:8000,http://h:8001", "grpc": "h:7070,h:7071"}
    assert words(ready_line(cluster())) == {**said, "metrics": "http://h:2/metrics"}


def test_with_tls_it_names_the_ca() -> None:
    assert words(ready_line(cluster(tls_dir="/my certs")))["ca"] == "/my certs/ca.pem"


def test_the_hints_are_for_this_cluster() -> None:
    assert list(hints(cluster(), "127.0.0.1", has_keys=False)) == [
        "talk to it:   dunlin chat",
        "with curl:    curl http://h:8000/v1/models",
        'from Python:  openai.OpenAI(base_url="http://h:8000/v1", api_key="any")',
        "watch it:     dunlin top, or http://h:2/metrics for Prometheus",
    ]
    secured = cluster(http="https://h:8000", tls_dir="/t", data_dir="/else where")
    said = "\n".join(hints(secured, "0.0.0.0", has_keys=True))
    assert "dunlin chat --data-dir '/else where'" in said
    assert 'curl --cacert /t/ca.pem -H "Authorization: Bearer $KEY" https://h:8000/v1/models' in said
    assert "SSL_CERT_FILE=/t/ca.pem" in said
    assert "every address of this machine" in said
