"""What a client shows of itself: arguments before the environment, and nothing half right."""

from pathlib import Path

import pytest

from dunlin.auth.certificates import CertificateRequest, issue_certificate, make_ca
from dunlin.client import Client, DunlinError
from dunlin.client.credentials import load_credentials


@pytest.fixture
def tls_dir(tmp_path: Path) -> Path:
    make_ca(tmp_path / "ca")
    issue_certificate(tmp_path / "ca", tmp_path / "me", CertificateRequest("client", "me"))
    return tmp_path / "me"


def test_nothing_given_is_plaintext_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUNLIN_TLS_DIR", raising=False)
    monkeypatch.delenv("DUNLIN_API_KEY", raising=False)
    access = load_credentials(None, None)
    assert (access.security, access.metadata) == (None, ())


def test_the_environment_counts_where_nothing_is_given(monkeypatch: pytest.MonkeyPatch, tls_dir: Path) -> None:
    monkeypatch.setenv("DUNLIN_TLS_DIR", str(tls_dir))
    monkeypatch.setenv("DUNLIN_API_KEY", "dk-env")
    access = load_credentials(None, None)
    assert access.security is not None
    assert access.security.directory == tls_dir
    assert access.metadata == (("authorization", "Bearer dk-env"),)
    assert load_credentials("", "dk-own").metadata == (("authorization", "Bearer dk-own"),)
    assert load_credentials("", "").security is None
    assert load_credentials("", "").metadata == ()


def test_what_cannot_be_used_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(DunlinError, match=r"cannot read .*ca\.pem"):
        Client("127.0.0.1:1", tls_dir=tmp_path)
    for key in ("dk-a\n", "dk a", "dk-ü"):
        with pytest.raises(DunlinError, match="characters that no key has"):
            Client("127.0.0.1:1", api_key=key)
