"""gRPC's settings of every client and server, and the channels made with them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from dunlin.messages.public import InfoReply, InfoRequest
from dunlin.wire.channels import (
    CLIENT_OPTIONS,
    MESSAGE_LIMIT_BYTES,
    SERVER_OPTIONS,
    open_blocking_channel,
    open_channel,
)
from dunlin.wire.rpc.methods import INFO, stub
from dunlin.wire.security import server_name
from tests.wire.ends import run
from tests.wire.rpc.answering import answering


def test_a_proxy_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: InfoRequest, context: Any) -> InfoReply:
        return InfoReply("tiny", 1, 1, "0")

    async def scenario() -> None:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        async with answering({INFO: answer}) as endpoint, open_channel(endpoint) as channel:
            assert (await stub(channel, INFO)(InfoRequest(), timeout=300)).model == "tiny"

    run(scenario)


def test_what_the_sdk_imports_loads_no_server_and_no_etcd(root: Path) -> None:
    program = "import dunlin.wire.channels, dunlin.wire.rpc.methods, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=300)
    loaded = done.stdout.split()
    assert "grpc.aio" in loaded, done.stderr
    heavy = ("grpc_health.", "grpc_reflection.", "uvloop", "torch", "dunlin.membership", "dunlin.wire.service.service")
    assert [name for name in loaded if name.startswith(heavy)] == []


@pytest.mark.parametrize("options", [CLIENT_OPTIONS, SERVER_OPTIONS], ids=["client", "server"])
def test_each_option_is_said_once_and_messages_may_be_as_large_on_both_sides(options: list[tuple[str, int]]) -> None:
    named = dict(options)
    assert len(named) == len(options)
    assert named["grpc.max_receive_message_length"] == named["grpc.max_send_message_length"] == MESSAGE_LIMIT_BYTES


def test_a_server_allows_the_pings_that_clients_send() -> None:
    pings_ms = dict(CLIENT_OPTIONS)["grpc.keepalive_time_ms"]
    assert dict(SERVER_OPTIONS)["grpc.http2.min_recv_ping_interval_without_data_ms"] < pings_ms
    assert dict(SERVER_OPTIONS)["grpc.http2.max_ping_strikes"] == 0


def test_a_pings_answer_is_awaited_as_long_by_both_names_of_the_limit() -> None:
    """`keepalive_timeout_ms` alone leaves HTTP/2's own limit at a minute."""
    for options in (dict(CLIENT_OPTIONS), dict(SERVER_OPTIONS)):
        assert options["grpc.http2.ping_timeout_ms"] == options["grpc.keepalive_timeout_ms"]


class Identity:
    """Stands for a process's certificate."""

    def channel_credentials(self) -> str:
        return "credentials"


@pytest.mark.parametrize(
    ("module", "open_any"), [(grpc.aio, open_channel), (grpc, open_blocking_channel)], ids=["asyncio", "threads"]
)
def test_a_channel_checks_the_role_and_name_of_who_answers(
    monkeypatch: pytest.MonkeyPatch, module: Any, open_any: Any
) -> None:
    opened: list[tuple[Any, ...]] = []
    monkeypatch.setattr(module, "secure_channel", lambda *args, options: opened.append((*args, dict(options))))
    monkeypatch.setattr(module, "insecure_channel", lambda *args, options: opened.append((*args, dict(options))))
    open_any("h:1")
    open_any("h:1", Identity(), "instance", "i-1")
    plain, secured = opened
    assert plain == ("h:1", dict(CLIENT_OPTIONS))
    assert secured[:2] == ("h:1", "credentials")
    assert secured[2] == {**dict(CLIENT_OPTIONS), "grpc.ssl_target_name_override": server_name("instance", "i-1")}
