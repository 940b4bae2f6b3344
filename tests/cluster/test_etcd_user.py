"""A whole cluster on an etcd that asks who calls."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import dunlin
from benchmarks.faults.etcd_outage import SingleEtcd
from cli.launch.cluster_process import ClusterError, ClusterProcess
from tests.membership.helpers import demand_users

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    etcd = SingleEtcd(tmp_path_factory.mktemp("etcd"))
    etcd.start()
    try:
        demand_users(etcd.endpoint)
        yield etcd.endpoint
    finally:
        etcd.kill()


def flags(endpoint: str, folder: Path, password: str) -> tuple[str, ...]:
    file = folder / "password"
    file.write_text(password + "\n")
    return ("--instances", "1", "--etcd", endpoint, "--etcd-user", "dunlin", "--etcd-password-file", str(file))


def test_a_cluster_runs_as_a_user_of_its_own_keys(endpoint: str, tmp_path: Path) -> None:
    with ClusterProcess(*flags(endpoint, tmp_path, "hello")) as own, dunlin.Client(own.grpc) as client:
        assert len(client.generate("who is there", max_tokens=4, ignore_eos=True).tokens) == 4


def test_the_password_may_come_from_the_environment(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUNLIN_ETCD_PASSWORD", "hello")
    given = ("--instances", "1", "--etcd", endpoint, "--etcd-user", "dunlin")
    with ClusterProcess(*given) as own, dunlin.Client(own.grpc) as client:
        assert client.status().members


@pytest.mark.parametrize(("password", "problem"), [("wrong", "invalid user ID or password"), ("", "holds no password")])
def test_a_wrong_password_is_named_at_once(endpoint: str, tmp_path: Path, password: str, problem: str) -> None:
    with pytest.raises(ClusterError, match=problem):
        ClusterProcess(*flags(endpoint, tmp_path, password)).start()


def test_no_user_is_named_at_once(endpoint: str) -> None:
    with pytest.raises(ClusterError, match="does it want a user and a password"):
        ClusterProcess("--instances", "1", "--etcd", endpoint).start()
