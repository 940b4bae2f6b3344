"""The certificates of `dunlin up --tls`: each process's own, of a CA that stays."""

import socket
from pathlib import Path

import pytest

from cli.launch.certificates import CLIENT, issue_cluster_certificates, tls_dir
from dunlin.wire.security import TlsIdentity

PROCESSES = [("instance", "instance-0"), ("global_manager", "global-manager-0"), ("etcd", "etcd")]


def test_every_process_and_a_client_get_one_of_their_own(tmp_path: Path) -> None:
    issue_cluster_certificates(tmp_path, "127.0.0.1", PROCESSES)
    for role, name in (*PROCESSES, ("client", CLIENT)):
        assert TlsIdentity.load_for(tls_dir(tmp_path, name), role, name)
        assert (tls_dir(tmp_path, name) / "key.pem").stat().st_mode & 0o777 == 0o600


def test_the_ca_stays_and_certificates_are_new_at_every_start(tmp_path: Path) -> None:
    issue_cluster_certificates(tmp_path, "127.0.0.1", PROCESSES)
    before = TlsIdentity.load(tls_dir(tmp_path, CLIENT))
    issue_cluster_certificates(tmp_path, "127.0.0.1", PROCESSES)
    after = TlsIdentity.load(tls_dir(tmp_path, CLIENT))
    assert before.ca == after.ca
    assert before.key != after.key


def test_a_key_of_a_ca_that_was_never_made_is_no_obstacle(tmp_path: Path) -> None:
    issue_cluster_certificates(tmp_path, "127.0.0.1", [])
    (tls_dir(tmp_path, "ca") / "ca.pem").unlink()  # as when the first start was killed before it was there
    issue_cluster_certificates(tmp_path, "127.0.0.1", PROCESSES)
    assert TlsIdentity.load_for(tls_dir(tmp_path, CLIENT), "client", CLIENT)


@pytest.mark.parametrize("machine", ["a_machine", "x" * 64, "machine.dunlin"])
def test_a_machine_whose_name_cannot_be_a_host_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: machine)
    issue_cluster_certificates(tmp_path, "0.0.0.0", PROCESSES)
    names = TlsIdentity.load(tls_dir(tmp_path, CLIENT)).names
    assert "localhost" in names
    assert machine not in names
