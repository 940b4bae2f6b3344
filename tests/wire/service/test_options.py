import argparse
import socket
from pathlib import Path
from typing import Any

import pytest

from dunlin.wire.service.options import ServiceOptions, add_service_flags, service_options


def parse(*flags: str) -> ServiceOptions:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_service_flags(parser)
    return service_options("instance", parser.parse_args(flags))


def test_flags_become_options() -> None:
    flags = "--name a --node n --listen 10.0.0.1:70 --etcd h:1,i:2 --data-dir /d --lease-ttl-s 3 --parent-pid 9"
    expected: dict[str, Any] = {
        "role": "instance",
        "name": "a",
        "node": "n",
        "listen": "10.0.0.1:70",
        "etcd": ("h:1", "i:2"),
        "data_dir": Path("/d"),
        "lease_ttl_s": 3,
        "parent_pid": 9,
    }
    assert parse(*flags.split()) == ServiceOptions(**expected)


def test_two_processes_without_a_name_do_not_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for pid in (11, 12):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        names.append(parse().name)
    assert len(set(names)) == 2


@pytest.mark.parametrize("listen", ["", "localhost", "localhost:", "localhost:x", ":80", "localhost:65536", "::1:80"])
def test_a_listen_that_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(argparse.ArgumentError, match="is not HOST:PORT"):
        parse("--listen", listen)


@pytest.mark.parametrize(
    ("listen", "advertise", "endpoint"),
    [
        ("127.0.0.1:0", "", "127.0.0.1:7000"),
        ("10.0.0.1:5", "", "10.0.0.1:7000"),
        ("0.0.0.0:0", "", f"{socket.gethostname()}:7000"),
        ("[::]:0", "", f"{socket.gethostname()}:7000"),
        ("0.0.0.0:0", "node-1.example", "node-1.example:7000"),
    ],
)
def test_the_endpoint_is_what_others_can_dial(listen: str, advertise: str, endpoint: str) -> None:
    options = ServiceOptions("instance", "a", ("h:1",), listen=listen, advertise=advertise)
    assert options.endpoint(7000) == endpoint


@pytest.mark.parametrize("etcd", ["nonsense", "a:1,", "https://a:1"])
def test_an_etcd_that_is_no_address_is_refused(etcd: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=r"etcd endpoint .* host:port"):
        parse("--etcd", etcd)


def test_the_password_of_etcd_comes_from_a_file_else_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUNLIN_ETCD_PASSWORD", "from the environment")
    file = tmp_path / "password"
    file.write_text("from a file\n")
    assert parse().etcd_password == ""
    assert parse("--etcd-user", "u").etcd_password == "from the environment"
    monkeypatch.setenv("DUNLIN_ETCD_USER", "v")
    assert (parse().etcd_user, parse().etcd_password) == ("v", "from the environment")
    options = parse("--etcd-user", "u", "--etcd-password-file", str(file))
    assert (options.etcd_user, options.etcd_password) == ("u", "from a file")
    assert "from a file" not in repr(options)


@pytest.mark.parametrize(("content", "problem"), [(None, "cannot read"), ("\n", "holds no password")])
def test_a_password_file_without_password_is_refused(tmp_path: Path, content: str | None, problem: str) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
    with pytest.raises(argparse.ArgumentError, match=problem):
        parse("--etcd-user", "u", "--etcd-password-file", str(file))
