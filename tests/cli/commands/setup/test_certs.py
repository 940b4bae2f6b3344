"""`dunlin certs`: what it makes is what --tls-dir takes, and mistakes are one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import main
from dunlin.wire.security import TlsIdentity


def test_what_it_issues_is_what_a_service_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ca = str(tmp_path / "ca")
    assert main(["certs", "init", ca]) == 0
    assert main(["certs", "issue", ca, "--role", "instance", "--name", "a", "--host", "10.0.0.1"]) == 0
    assert main(["certs", "issue", ca, "--role", "kvstore", "--name", "*"]) == 0
    assert main(["certs", "issue", ca, "--role", "client", "--name", "me", "--out", str(tmp_path / "mine")]) == 0
    assert TlsIdentity.load_for(tmp_path / "ca" / "a", "instance", "a")
    assert TlsIdentity.load_for(tmp_path / "ca" / "any-kvstore", "kvstore", "kvstore-7")
    assert TlsIdentity.load(tmp_path / "mine").names == ("client.dunlin", "me.client.dunlin")
    assert "ca-key.pem" in capsys.readouterr().out


MISTAKES = [
    (["init", "{ca}"], "exists already"),
    (["issue", "{ca}", "--role", "instance", "--name", ""], "a certificate needs a name"),
    (["issue", "{ca}/none", "--role", "instance", "--name", "a"], "no CA in"),
    (["issue", "{ca}", "--role", "instance", "--name", "a", "--host", "x.dunlin"], "is no host name"),
]


@pytest.mark.parametrize(("words", "text"), MISTAKES)
def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str) -> None:
    ca = tmp_path / "ca"
    assert main(["certs", "init", str(ca)]) == 0
    before = sorted(tmp_path.rglob("*"))
    assert main(["certs", *(word.format(ca=ca) for word in words)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dunlin: ")
    assert said.count("\n") == 1
    assert text in said
    assert sorted(tmp_path.rglob("*")) == before


def test_a_service_with_the_wrong_certificate_ends_with_one_line(tmp_path: Path) -> None:
    assert main(["certs", "init", str(tmp_path)]) == 0
    assert main(["certs", "issue", str(tmp_path), "--role", "instance", "--name", "a"]) == 0
    words = ["--name", "kvstore-0", "--tls-dir", str(tmp_path / "a"), "--data-dir", str(tmp_path)]
    command = [sys.executable, "-m", "cli.main", "serve", "kvstore", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("dunlin kvstore/kvstore-0: ")
    assert "cert.pem is not for the kvstore 'kvstore-0' (it names instance.dunlin, a.instance.dunlin)" in last
