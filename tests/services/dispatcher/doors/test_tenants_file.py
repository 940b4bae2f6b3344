"""The file of tenants on disk: read anew when it changed, and a bad one changes nothing."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from dunlin.auth.tenants import RequestObjectives, Tenant, format_tenants, hash_key
from dunlin.wire.errors import StartError
from services.dispatcher.doors.tenants_file import TenantsFile
from tests.services.dispatcher.raw_http import lines

ONE = Tenant("one", (hash_key("dk-one"),))
TWO = Tenant("two")


class Heard(list[list[str]]):
    def take(self, tenants: tuple[Tenant, ...]) -> None:
        self.append([tenant.name for tenant in tenants])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_text(format_tenants((ONE,)))
    return path


def put(path: Path, text: str) -> None:
    """As `dunlin keys` writes: beside, then into place."""
    fresh = path.with_name("fresh")
    fresh.write_text(text)
    os.replace(fresh, path)


def test_a_change_is_read_once(path: Path) -> None:
    heard = Heard()
    file = TenantsFile(path, heard.take)
    file.load()
    asyncio.run(file.reload_if_changed())
    put(path, format_tenants((ONE, TWO)))
    asyncio.run(file.reload_if_changed())
    asyncio.run(file.reload_if_changed())
    assert heard == [["one"], ["one", "two"]]


def test_a_bad_file_keeps_the_old_one_and_is_logged_with_its_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    file = TenantsFile(path, heard.take)
    file.load()
    put(path, '{"tenants": {\n "one": {\n "running": -1}}}')
    asyncio.run(file.reload_if_changed())
    asyncio.run(file.reload_if_changed())
    path.unlink()
    asyncio.run(file.reload_if_changed())
    asyncio.run(file.reload_if_changed())
    said = [record.getMessage() for record in lines(caplog)]
    assert len(said) == 2
    assert f"{path}: line 3: tenants.one.running: must be" in said[0]
    assert "still hold" in said[0]
    assert "No such file" in said[1]
    put(path, format_tenants((TWO,)))
    asyncio.run(file.reload_if_changed())
    assert heard == [["one"], ["two"]]


def test_a_change_that_cannot_be_read_at_once_is_read_later(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a process has no file descriptor left for a moment: a key that was revoked must not stay for ever."""
    heard = Heard()
    file = TenantsFile(path, heard.take)
    file.load()
    put(path, format_tenants((TWO,)))
    with monkeypatch.context() as faulty:
        faulty.setattr(Path, "read_bytes", no_descriptor_left)
        asyncio.run(file.reload_if_changed())
        asyncio.run(file.reload_if_changed())
    assert len(lines(caplog)) == 1
    asyncio.run(file.reload_if_changed())
    assert heard == [["one"], ["two"]]


def no_descriptor_left(path: Path) -> bytes:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_start_needs_a_good_one(path: Path) -> None:
    path.write_text("{")
    with pytest.raises(StartError, match=r"--keys .*keys\.json: line 1: no JSON"):
        TenantsFile(path, Heard().take).load()
    path.unlink()
    with pytest.raises(StartError, match=r"--keys .*keys\.json: No such file"):
        TenantsFile(path, Heard().take).load()


def test_what_is_not_allowed_here_is_as_what_is_invalid(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    file = TenantsFile(path, heard.take, lambda tenant: "too strict" if tenant.objectives.ttft_s else "")
    file.load()
    strict = Tenant("two", objectives=RequestObjectives(0.1))
    put(path, format_tenants((ONE, strict)))
    asyncio.run(file.reload_if_changed())
    assert heard == [["one"]]
    assert "tenants.two: too strict" in caplog.text
    with pytest.raises(StartError, match=r"--keys .*keys\.json: tenants\.two: too strict"):
        file.load()
