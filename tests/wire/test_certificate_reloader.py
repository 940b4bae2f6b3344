"""Certificates that are rotated while a process runs: new connections use them, broken ones change nothing."""

import asyncio
import logging
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import grpc.aio
import pytest

from dunlin.auth.certificates import CertificateRequest, issue_certificate, make_ca
from dunlin.effects import Address
from dunlin.membership.client import EtcdClient
from dunlin.membership.errors import EtcdUnavailable
from dunlin.transport.sockets.connections import connect
from dunlin.v1 import etcd_pb2
from dunlin.wire import certificate_reloader
from dunlin.wire.certificate_reloader import CertificateReloader
from dunlin.wire.channels import SERVER_OPTIONS
from dunlin.wire.envelopes import DISPATCH
from dunlin.wire.errors import StartError
from dunlin.wire.rpc.server import GrpcServer
from dunlin.wire.security import TlsIdentity, server_name
from dunlin.wire.streams.dialer import StreamDialer
from tests.wire.ends import QUICK, Acceptance, End, eventually, run

INSTANCE = Address("instance", "i-1", 3)
DISPATCHER = Address("dispatcher", "d-1", 7)


class Rotation:
    """Two CAs, each with certificates of the same holders; `put` renews those in a holder's directory in place."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for ca in ("old", "new"):
            make_ca(root / ca)
            for one in (INSTANCE, DISPATCHER):
                issue_certificate(
                    root / ca, root / ca / one.name, CertificateRequest(one.role, one.name, ("localhost",))
                )

    def put(self, address: Address, ca: str = "new", names: tuple[str, ...] = ("ca", "cert", "key")) -> Path:
        """Replace files in the directory of `address`, one by one, as certbot does."""
        directory = self.root / "in-use" / address.name
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            self.write(address, name, (self.root / ca / address.name / f"{name}.pem").read_bytes())
        return directory

    def write(self, address: Address, name: str, data: bytes) -> None:
        made = self.root / "made"
        made.write_bytes(data)
        made.rename(self.root / "in-use" / address.name / f"{name}.pem")

    def reloader(self, address: Address) -> CertificateReloader:
        directory = self.put(address, "old")
        return CertificateReloader(lambda: TlsIdentity.load_for(directory, address.role, address.name))

    def identity(self, ca: str, address: Address) -> TlsIdentity:
        return TlsIdentity.load(self.root / ca / address.name)


@pytest.fixture
def files(tmp_path: Path) -> Rotation:
    return Rotation(tmp_path)


def answers_to(port: int, client: ssl.SSLContext, address: Address = INSTANCE) -> bool:
    """Whether a real handshake with the port succeeds, both sides checking the other one's certificate."""
    client.set_alpn_protocols(["h2"])  # gRPC talks to nobody else
    try:
        with connect(f"127.0.0.1:{port}", server_name(address.role, address.name), lambda: client, 60.0) as stream:
            return bool(stream.recv(1))  # a client learns only after its own end of the handshake that it is refused
    except OSError:
        return False


def test_a_grpc_server_answers_with_renewed_certificates(files: Rotation) -> None:
    old, new = (files.identity(ca, DISPATCHER).client_context() for ca in ("old", "new"))
    seen: list[tuple[bool, bool]] = []

    async def scenario() -> None:
        server = GrpcServer("127.0.0.1:0", files.reloader(INSTANCE).server_credentials())
        await server.start((), ())
        for ca in ("old", "new"):
            files.put(INSTANCE, ca)
            with_old = await asyncio.to_thread(answers_to, server.port, old)
            seen.append((with_old, await asyncio.to_thread(answers_to, server.port, new)))
        await server.stop(0)

    run(scenario)
    assert seen == [(True, False), (False, True)], "a CA that was replaced lets nobody in"


def test_two_cas_in_one_file_let_both_in(files: Rotation) -> None:
    """So that a CA can be replaced while certificates of both are about."""
    reloader = files.reloader(INSTANCE)
    files.write(INSTANCE, "ca", b"".join((files.root / ca / "ca.pem").read_bytes() for ca in ("old", "new")))
    newer = ssl.create_default_context(cafile=str(files.root / "old" / "ca.pem"))
    issued = files.root / "new" / DISPATCHER.name
    newer.load_cert_chain(issued / "cert.pem", issued / "key.pem")
    with accepting(reloader.server_context) as port:
        assert answers_to(port, newer)
        assert answers_to(port, files.identity("old", DISPATCHER).client_context())


def test_a_dialer_connects_again_with_renewed_certificates(files: Rotation) -> None:
    """The stream of an open connection goes on; the next one is made with the files of then."""

    async def scenario() -> None:
        answering = Acceptance(INSTANCE, security=files.identity("old", INSTANCE))
        endpoint = await answering.start()
        end = End(DISPATCHER)
        dialer = StreamDialer(
            end.host, INSTANCE, endpoint, DISPATCH, backoff=QUICK, security=files.reloader(DISPATCHER)
        )
        await eventually(lambda: dialer.connected)
        files.put(DISPATCHER)
        await asyncio.sleep(0.05)
        assert dialer.connected
        await answering.server.stop(None)
        renewed = Acceptance(INSTANCE, security=files.identity("new", INSTANCE))
        await renewed.start(answering.port)
        await eventually(lambda: bool(renewed.core.heard))
        await dialer.stop()
        await renewed.server.stop(None)
        assert end.errors == answering.errors == renewed.errors == []

    run(scenario)


class Etcd:
    """Answers reads of keys over TLS as etcd does, with nothing."""

    def __init__(self, security: TlsIdentity) -> None:
        reply = grpc.unary_unary_rpc_method_handler(
            self._range,
            request_deserializer=etcd_pb2.RangeRequest.FromString,
            response_serializer=etcd_pb2.RangeResponse.SerializeToString,
        )
        self._security = security
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("etcdserverpb.KV", {"Range": reply}),)
        )

    @staticmethod
    async def _range(request: object, context: object) -> etcd_pb2.RangeResponse:
        return etcd_pb2.RangeResponse()

    async def start(self, port: int = 0) -> int:
        port = self.server.add_secure_port(f"127.0.0.1:{port}", self._security.server_credentials())
        await self.server.start()
        return port


async def answered(client: EtcdClient) -> None:
    """Asks until it is answered: on a busy machine a handshake may take longer than a call waits for it."""
    while True:
        try:
            assert await client.get("key") is None
            return
        except EtcdUnavailable:
            await asyncio.sleep(0.01)


def test_etcd_is_asked_with_renewed_certificates(files: Rotation) -> None:
    async def scenario() -> None:
        reloader, etcd = files.reloader(DISPATCHER), Etcd(files.identity("old", INSTANCE))
        port = await etcd.start()
        client = EtcdClient([f"localhost:{port}"], credentials=reloader.channel_credentials)
        await answered(client)
        await etcd.server.stop(None)
        etcd = Etcd(files.identity("new", INSTANCE))
        await etcd.start(port)
        with pytest.raises(EtcdUnavailable):
            await client.get("key")
        files.put(DISPATCHER)
        await answered(client)
        await client.close()
        await etcd.server.stop(None)

    run(scenario)


@contextmanager
def accepting(context: Callable[[], ssl.SSLContext]) -> Iterator[int]:
    """A plain TLS server that says one byte to whoever shows the right certificate."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                stream, _ = listening.accept()
            except OSError:
                return
            try:
                with context().wrap_socket(stream, server_side=True) as secured:
                    secured.send(b"!")
            except OSError:
                stream.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield cast(int, listening.getsockname()[1])
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def test_plain_sockets_use_renewed_certificates_at_both_ends(files: Rotation) -> None:
    answers, dials = files.reloader(INSTANCE), files.reloader(DISPATCHER)
    with accepting(answers.server_context) as port:
        assert answers_to(port, dials.client_context())
        files.put(INSTANCE)
        assert not answers_to(port, dials.client_context())
        files.put(DISPATCHER)
        assert answers_to(port, dials.client_context())


def removed_key(files: Rotation) -> None:
    (files.root / "in-use" / INSTANCE.name / "key.pem").unlink()


BROKEN: list[tuple[Callable[[Rotation], object], str]] = [
    (
        lambda files: files.write(INSTANCE, "cert", b"nothing"),
        r"cert\.pem and .*key\.pem are not a certificate and its",
    ),
    (lambda files: files.write(INSTANCE, "ca", b"nothing"), r"ca\.pem is not a certificate in PEM form"),
    (removed_key, r"cannot read .*key\.pem: No such file"),
    (lambda files: files.put(INSTANCE, names=("cert",)), r"cert\.pem and .*key\.pem are not a certificate and its key"),
    (lambda files: files.put(INSTANCE, names=("ca",)), r"cert\.pem does not hold against .*ca\.pem"),
]


@pytest.mark.parametrize(("breaks", "text"), BROKEN)
def test_files_that_cannot_be_used_are_logged_once_and_change_nothing(
    files: Rotation, caplog: pytest.LogCaptureFixture, breaks: Callable[[Rotation], object], text: str
) -> None:
    reloader = files.reloader(INSTANCE)
    before = reloader.current()
    breaks(files)
    with caplog.at_level(logging.INFO), accepting(reloader.server_context) as port:
        for _ in range(3):
            assert answers_to(port, files.identity("old", DISPATCHER).client_context())
        assert reloader.current() is before
        (said,) = caplog.messages
        assert re.search(rf"goes on with the certificates read before from .*i-1: .*{text}", said)
        files.put(INSTANCE)
        assert answers_to(port, files.identity("new", DISPATCHER).client_context())
        assert caplog.messages[-1].startswith("new connections use the certificates that were put into")


def test_a_certificate_of_another_process_is_not_taken(files: Rotation, caplog: pytest.LogCaptureFixture) -> None:
    reloader = files.reloader(INSTANCE)
    before = reloader.current()
    for name in ("cert", "key"):
        files.write(INSTANCE, name, (files.root / "old" / DISPATCHER.name / f"{name}.pem").read_bytes())
    assert reloader.current() is before
    assert "is not for the instance 'i-1'" in caplog.messages[-1]


def test_files_behind_a_link_that_is_turned_are_read_again(files: Rotation) -> None:
    """As Kubernetes renews a mounted secret: one link, to a directory, is replaced."""
    link = files.root / "link"
    link.symlink_to(files.root / "old" / INSTANCE.name)
    reloader = CertificateReloader(lambda: TlsIdentity.load(link))
    link.unlink()
    link.symlink_to(files.root / "new" / INSTANCE.name)
    assert reloader.current() == replace(files.identity("new", INSTANCE), directory=link)


def test_a_fault_is_found_without_a_connection(
    files: Rotation, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_reloader, "CHECK_S", 0.01)
    reloader = files.reloader(INSTANCE)
    files.write(INSTANCE, "cert", b"nothing")

    async def scenario() -> None:
        watching = asyncio.create_task(reloader.watch())
        await eventually(lambda: bool(caplog.messages))
        watching.cancel()

    run(scenario)


@pytest.mark.parametrize(
    ("days", "left_days", "warns"), [(825, 29, True), (825, 31, False), (1, 0.3, False), (1, 0.2, True)]
)
def test_a_renewal_that_does_not_come_is_told_once(
    files: Rotation,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    days: int,
    left_days: float,
    warns: bool,
) -> None:
    monkeypatch.setattr(certificate_reloader, "CHECK_S", 0.001)
    request = CertificateRequest(INSTANCE.role, INSTANCE.name, days=days)
    issue_certificate(files.root / "old", files.root / "old" / INSTANCE.name, request, force=True)
    reloader = files.reloader(INSTANCE)
    now_s = reloader.current().ends_s - left_days * 86_400
    monkeypatch.setattr(certificate_reloader, "time", SimpleNamespace(time=lambda: now_s))

    async def scenario() -> None:
        watching = asyncio.create_task(reloader.watch())
        await asyncio.sleep(0.05)
        watching.cancel()

    run(scenario)
    assert caplog.messages == (
        [f"the certificate in {files.put(INSTANCE, 'old')} ends in {left_days:.1f} days"] if warns else []
    )


def test_the_start_needs_good_files(files: Rotation) -> None:
    directory = files.put(INSTANCE, "old", names=("ca", "cert"))
    with pytest.raises(StartError, match=r"cannot read .*key\.pem"):
        CertificateReloader(lambda: TlsIdentity.load(directory))
