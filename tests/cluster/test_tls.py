"""A whole cluster on TLS: everything works through every door, and whoever has no right certificate is refused."""

import asyncio
import json
import os
import signal
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dunlin
from cli.launch.cluster_process import ClusterProcess
from cli.launch.cluster_state import ClusterState, read_state
from dunlin.auth.certificates import CertificateRequest, issue_certificate, make_ca
from dunlin.client import Unavailable
from dunlin.effects import Address
from dunlin.membership.client import EtcdClient
from dunlin.membership.connection import Timeouts
from dunlin.membership.errors import EtcdUnavailable
from dunlin.membership.members import MemberWatch
from dunlin.messages.membership import Member, MembersReset
from dunlin.wire.channels import open_channel
from dunlin.wire.envelopes import DISPATCH, FLEET, POOL, StreamProtocol
from dunlin.wire.security import TlsIdentity
from dunlin.wire.streams.stream import identity_metadata
from tests.cluster.conftest import Command

pytestmark = pytest.mark.cluster

Members = dict[str, Member]
LENGTH = 1500
"""Runs still when the monitor has heard where."""


@pytest.fixture(scope="module")
def secured() -> Iterator[ClusterProcess]:
    with ClusterProcess("--tls", "--instances", "2", "--tier-mib", "64") as made:
        yield made


@pytest.fixture(scope="module")
def state(secured: ClusterProcess) -> ClusterState:
    found = read_state(secured.data_dir)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def client_dir(state: ClusterState) -> Path:
    return Path(state.tls_dir)


@pytest.fixture(scope="module")
def members(state: ClusterState, client_dir: Path) -> Members:
    """Every registered process, by name, read from etcd over TLS."""

    async def read() -> Members:
        etcd = EtcdClient([state.etcd], credentials=TlsIdentity.load(client_dir).channel_credentials)
        try:
            async for message in MemberWatch(etcd):
                assert isinstance(message, MembersReset)
                return {member.address.name: member for member in message.members}
            raise AssertionError("the watch ended")
        finally:
            await etcd.close()

    return asyncio.run(asyncio.wait_for(read(), 300))


def post(url: str, body: object, context: ssl.SSLContext) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(request, timeout=300) as answer:
        return json.load(answer)


def told(client: dunlin.Client, request: str, limit_s: float = 300.0) -> bool:
    """Whether the monitor explains the request; reasons come to it in batches."""
    until_s = time.monotonic() + limit_s
    while not client.explain(request).reasons:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
    return True


def test_the_sdk_generates_and_explains(secured: ClusterProcess, client_dir: Path) -> None:
    with dunlin.Client(secured.grpc, tls_dir=client_dir) as client:
        done = client.chat([("user", "hello")], max_tokens=8, temperature=0)
        assert done.tokens
        assert told(client, done.request)
        up = {member.address.role: member.connected for member in client.status().members}
    assert up == {"dispatcher": True, "global_manager": True, "instance": True, "kvstore": True, "monitor": True}


def test_http_is_https(secured: ClusterProcess, client_dir: Path) -> None:
    assert secured.http.startswith("https://")
    trusting = ssl.create_default_context(cafile=str(client_dir / "ca.pem"))
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    answer = post(f"{secured.http}/v1/chat/completions", body, trusting)
    assert answer["usage"]["completion_tokens"] > 0
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        post(f"{secured.http}/v1/chat/completions", body, ssl.create_default_context())


def test_the_command_line_finds_the_certificates(secured: ClusterProcess, command: Command) -> None:
    where = ("--data-dir", str(secured.data_dir))
    said = command("generate", "Once", "--max-tokens", "4", *where)
    assert said.returncode == 0, said.stderr
    name = said.stderr.split()[1]
    assert command("explain", name, *where).returncode == 0
    assert "instance-1" in command("status", *where).stdout


def test_a_client_without_a_certificate_is_refused(secured: ClusterProcess, client_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes((client_dir / "ca.pem").read_bytes())
    for tls_dir in ("", tmp_path):
        with dunlin.Client(secured.grpc, tls_dir=tls_dir) as client, pytest.raises(Unavailable):
            client.info()


def attach(member: Member, conversation: StreamProtocol, security: TlsIdentity | None, caller: Address) -> str:
    """Dial one process as `caller`; how that ends. Empty: it was taken."""

    async def dial() -> str:
        address = member.address
        async with open_channel(member.endpoint, security, address.role, address.name) as channel:
            make: Any = channel.stream_stream(conversation.method)
            call = make(metadata=identity_metadata(caller, address), timeout=300)
            reading = asyncio.create_task(call.initial_metadata())
            await asyncio.wait([reading, asyncio.create_task(call.code())], return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return f"{(await call.code()).name}: {await call.details()}"
            call.cancel()
            return ""

    return asyncio.run(dial())


TARGETS = (
    ("instance-0", DISPATCH, "dispatcher"),
    ("kvstore-0", POOL, "instance"),
    ("monitor-0", FLEET, "instance"),
)


@pytest.mark.parametrize(("name", "conversation", "role"), TARGETS)
def test_only_who_has_the_certificate_of_its_role_is_taken(
    members: Members, state: ClusterState, tmp_path: Path, name: str, conversation: StreamProtocol, role: str
) -> None:
    ours = Path(state.data_dir) / "tls" / "ca"
    make_ca(tmp_path / "theirs")
    issue_certificate(tmp_path / "theirs", tmp_path / "foreign", CertificateRequest(role, "impostor"))
    issue_certificate(ours, tmp_path / "right", CertificateRequest(role, "newcomer"))
    (tmp_path / "foreign" / "ca.pem").write_bytes((ours / "ca.pem").read_bytes())
    ca, leaf, key = ((tmp_path / "foreign" / one).read_bytes() for one in ("ca.pem", "cert.pem", "key.pem"))
    foreign = TlsIdentity(tmp_path / "foreign", ca, leaf, key)
    client, right = TlsIdentity.load(Path(state.tls_dir)), TlsIdentity.load(tmp_path / "right")
    newcomer = Address(role, "newcomer", 1)
    target = members[name]
    assert attach(target, conversation, None, newcomer).startswith("UNAVAILABLE")
    assert attach(target, conversation, foreign, Address(role, "impostor", 1)).startswith("UNAVAILABLE")
    said = attach(target, conversation, client, newcomer)
    assert said.startswith("PERMISSION_DENIED")
    assert "shows the certificate of client.dunlin" in said
    assert attach(target, conversation, right, Address(role, "somebody-else", 1)).startswith("PERMISSION_DENIED")
    assert attach(target, conversation, right, newcomer) == ""


def test_etcd_answers_no_client_without_a_certificate(state: ClusterState) -> None:
    async def ask() -> None:
        etcd = EtcdClient([state.etcd], timeouts=Timeouts(connect_s=2.0))
        try:
            await etcd.status()
        finally:
            await etcd.close()

    with pytest.raises(EtcdUnavailable):
        asyncio.run(ask())


def test_every_listening_port_speaks_tls(members: Members, state: ClusterState) -> None:
    """Plain HTTP/2 on any port of the cluster gets nothing; the page of metrics alone is plain."""
    assert len(members) == 6
    for member in members.values():
        assert attach(member, DISPATCH, None, Address("dispatcher", "d", 1)).startswith("UNAVAILABLE"), member


def test_an_operator_drains_by_certificate(secured: ClusterProcess, command: Command) -> None:
    where = ("--data-dir", str(secured.data_dir))
    for flags in ((), ("--undo",)):
        done = command("drain", "instance-1", *flags, *where)
        assert done.returncode == 0, done.stderr


def busy(client: dunlin.Client) -> list[int]:
    """The pids of instances that run something."""
    members = client.status().members
    return [member.pid for member in members if member.instance is not None and member.instance.running]


def test_a_stream_goes_on_when_its_instance_is_killed(secured: ClusterProcess, client_dir: Path) -> None:
    with dunlin.Client(secured.grpc, tls_dir=client_dir) as client:
        tokens, killed = 0, False
        for event in client.stream("once upon a time", max_tokens=LENGTH, ignore_eos=True):
            tokens += len(event.tokens)
            if tokens and not killed and (pids := busy(client)):
                os.kill(pids[0], signal.SIGKILL)
                killed = True
        assert killed
        assert tokens == LENGTH
        eventually_back(client)


def eventually_back(client: dunlin.Client, limit_s: float = 300.0) -> None:
    until_s = time.monotonic() + limit_s
    while sum(member.instance is not None and member.connected for member in client.status().members) < 2:
        assert time.monotonic() < until_s
        time.sleep(0.2)
