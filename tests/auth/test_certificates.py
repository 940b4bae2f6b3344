"""Certificates: what they say, that nothing is overwritten, and that keys are for their owner alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dunlin.auth.certificates import (
    ANY_NAME,
    CertificateError,
    CertificateRequest,
    identity_names,
    issue_certificate,
    make_ca,
)
from dunlin.wire.errors import StartError
from dunlin.wire.security import TlsIdentity


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ca")
    make_ca(directory)
    return directory


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_keys_are_for_their_owner_alone(ca: Path, tmp_path: Path) -> None:
    issue_certificate(ca, tmp_path / "leaf", CertificateRequest("instance", "instance-0"))
    assert mode(ca / "ca-key.pem") == mode(tmp_path / "leaf" / "key.pem") == 0o600
    assert sorted(path.name for path in (tmp_path / "leaf").iterdir()) == ["ca.pem", "cert.pem", "key.pem"]
    assert (tmp_path / "leaf" / "ca.pem").read_bytes() == (ca / "ca.pem").read_bytes()


def test_a_certificate_names_role_name_and_hosts(ca: Path, tmp_path: Path) -> None:
    from cryptography import x509

    issue_certificate(
        ca, tmp_path, CertificateRequest("global_manager", "boss-1", ("10.0.0.1", "::1", "node.example"), days=30)
    )
    certificate = x509.load_pem_x509_certificate((tmp_path / "cert.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [
        "global-manager.dunlin",
        "boss-1.global-manager.dunlin",
        "node.example",
    ]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert 29 <= (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days <= 30


def test_nothing_is_overwritten_unless_that_is_said(tmp_path: Path) -> None:
    make_ca(tmp_path)
    first = (tmp_path / "ca.pem").read_bytes()
    with pytest.raises(CertificateError, match=r"ca\.pem exists already.*--force"):
        make_ca(tmp_path)
    issue_certificate(tmp_path, tmp_path / "one", CertificateRequest("client", "me"))
    key = (tmp_path / "one" / "key.pem").read_bytes()
    with pytest.raises(CertificateError, match=r"one/cert\.pem exists already"):
        issue_certificate(tmp_path, tmp_path / "one", CertificateRequest("client", "me"))
    assert (tmp_path / "ca.pem").read_bytes() == first
    assert (tmp_path / "one" / "key.pem").read_bytes() == key
    issue_certificate(tmp_path, tmp_path / "one", CertificateRequest("client", "me"), force=True)
    assert (tmp_path / "one" / "key.pem").read_bytes() != key
    make_ca(tmp_path, force=True)
    assert (tmp_path / "ca.pem").read_bytes() != first


ODD = ["a b", "a.b", "-a", "a-", "ü", "a_b", "x" * 64, "*x", "A", "name-1", "a\0", "\ud800"]


def test_every_name_has_a_label_of_its_own() -> None:
    labels = [identity_names("instance", name)[1] for name in [*ODD, "a", "x" * 63, "1"]]
    assert len(set(labels)) == len(labels)
    for label in labels:
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,61}[a-z0-9]?\.instance\.dunlin", label), label


def test_an_odd_name_gets_a_certificate_too(ca: Path, tmp_path: Path) -> None:
    for name in ODD:
        issue_certificate(ca, tmp_path, CertificateRequest("instance", name), force=True)
        assert TlsIdentity.load_for(tmp_path, "instance", name)
    issue_certificate(ca, tmp_path, CertificateRequest("instance", "instance-a.example.org"), force=True)
    assert TlsIdentity.load_for(tmp_path, "instance", "instance-a.example.org")
    with pytest.raises(StartError):
        TlsIdentity.load_for(tmp_path, "instance", "instance-b.example.org")


def test_names_say_role_and_process() -> None:
    assert identity_names("kvstore", "kvstore-0") == ("kvstore.dunlin", "kvstore-0.kvstore.dunlin")
    assert identity_names("instance", ANY_NAME) == ("instance.dunlin", "*.instance.dunlin")
    with pytest.raises(CertificateError, match="needs a name"):
        identity_names("instance", "")
    with pytest.raises(CertificateError, match="no role 'king': choose one of dispatcher"):
        identity_names("king", "a")


@pytest.mark.parametrize("host", ["", "a b", "instance.dunlin", "x.instance.dunlin", "http://a"])
def test_a_host_that_is_none_or_would_claim_a_role_is_refused(ca: Path, tmp_path: Path, host: str) -> None:
    with pytest.raises(CertificateError, match="host"):
        issue_certificate(ca, tmp_path, CertificateRequest("client", "me", (host,)))
    assert not list(tmp_path.iterdir())


def test_without_a_ca_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"no CA in .*ca\.pem is missing"):
        issue_certificate(tmp_path, tmp_path / "leaf", CertificateRequest("client", "me"))
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(CertificateError, match="cannot read the CA"):
        issue_certificate(tmp_path, tmp_path / "leaf", CertificateRequest("client", "me"))


def test_the_package_is_loaded_only_to_make_certificates() -> None:
    code = "import sys, dunlin.wire.security, dunlin.auth.certificates; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
