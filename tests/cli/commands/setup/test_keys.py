"""`dunlin keys`: a key is shown once, its hash kept, and files that are not ours are left alone."""

import os
from pathlib import Path

import pytest

from cli.main import main
from dunlin.auth.tenants import hash_key, parse_tenants


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["keys", *words]) == code
    said = capsys.readouterr()
    return said.out if code == 0 else said.err


def test_a_key_is_printed_once_and_its_hash_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    key = run(capsys, "add", "--keys", str(path), "--tenant", "acme", "--running", "2").strip()
    other = run(capsys, "add", "--keys", str(path), "--tenant", "acme", "--max-tokens", "9").strip()
    (tenant,) = parse_tenants(path.read_bytes(), is_toml=False)
    assert tenant.keys == (hash_key(key), hash_key(other))
    assert (tenant.quota.tenant, tenant.quota.running, tenant.quota.max_tokens) == ("acme", 2, 9)
    assert key.startswith("dk-")
    assert len(key) > 40
    assert key not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_weight_stays_until_another_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ("--keys", str(tmp_path / "keys.json"))
    for weight in (("--weight", "3"), ()):
        run(capsys, "add", *file, "--tenant", "acme", *weight)
        (tenant,) = parse_tenants((tmp_path / "keys.json").read_bytes(), is_toml=False)
        assert tenant.quota.weight == 3
    assert run(capsys, "list", *file).splitlines()[1].split()[:2] == ["acme", "3"]


def test_keys_and_tenants_are_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ("--keys", str(tmp_path / "keys.json"))
    first = hash_key(run(capsys, "add", *file, "--tenant", "acme").strip())[:12]
    second = hash_key(run(capsys, "add", *file, "--tenant", "acme").strip())[:12]
    assert f"{first} {second}" in run(capsys, "list", *file)
    run(capsys, "remove", *file, "--tenant", "acme", "--key", first)
    listed = run(capsys, "list", *file)
    assert second in listed
    assert first not in listed
    assert "not one key of 'acme'" in run(capsys, "remove", *file, "--tenant", "acme", "--key", first, code=2)
    run(capsys, "remove", *file, "--tenant", "acme")
    assert "acme" not in run(capsys, "list", *file)
    assert "no tenant 'acme'" in run(capsys, "remove", *file, "--tenant", "acme", code=2)


def test_a_toml_file_is_its_owners_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.toml"
    said = run(capsys, "add", "--keys", str(path), "--tenant", "acme")
    assert hash_key(said.splitlines()[-1]) in said
    assert not path.exists()
    path.write_text("[tenants.acme]\nrunning = 3\n")
    assert "acme" in run(capsys, "list", "--keys", str(path))
    assert "yours to write" in run(capsys, "remove", "--keys", str(path), "--tenant", "acme", code=2)


def test_a_broken_file_is_named_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"tenants": {"a": {"running": "2"}}}')
    assert "line 1: tenants.a.running" in run(capsys, "add", "--keys", str(path), "--tenant", "b", code=2)
    assert '"2"' in path.read_text()
    assert "a tenant's name" in run(capsys, "add", "--keys", str(tmp_path / "new.json"), "--tenant", "\t", code=2)
    assert not (tmp_path / "new.json").exists()


def test_a_changed_file_keeps_its_owner_and_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    run(capsys, "add", "--keys", str(path), "--tenant", "acme")
    path.chmod(0o640)
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda file, user, group: given.append((user, group)))
    run(capsys, "add", "--keys", str(path), "--tenant", "acme")
    assert path.stat().st_mode & 0o777 == 0o640
    assert given == [(os.getuid(), os.getgid())]


def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    said = run(capsys, "add", "--keys", str(tmp_path / "keys.json"), "--tenant", "acme", code=2)
    assert "cannot be written (No space left on device)" in said
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    said = run(capsys, "add", "--keys", str(tmp_path / "file" / "keys.json"), "--tenant", "acme", code=2)
    assert "cannot be written (Not a directory)" in said
