"""TLS between processes: the files are checked by name, and every wrong peer is refused on both sides."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest

import dunlin.auth.certificates as certificates
from dunlin.auth.certificates import CertificateRequest, issue_certificate, make_ca
from dunlin.effects import Address
from dunlin.messages.public import InfoReply, InfoRequest
from dunlin.wire.channels import SERVER_OPTIONS, open_channel
from dunlin.wire.envelopes import DISPATCH, STREAM_PROTOCOLS
from dunlin.wire.errors import StartError
from dunlin.wire.rpc.calls import CallFailed, call_async
from dunlin.wire.rpc.methods import INFO, Methods
from dunlin.wire.security import TlsIdentity, has_role, is_certificate_of, server_name
from dunlin.wire.streams.dialer import StreamDialer
from tests.wire.ends import QUICK, Acceptance, End, eventually, run

INSTANCE = Address("instance", "i-1", 3)
DISPATCHER = Address("dispatcher", "d-1", 7)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA with a certificate per role, and another CA with the same ones."""
    root = tmp_path_factory.mktemp("tls")
    for ca in ("ours", "theirs"):
        make_ca(root / ca)
        for role, name in (("instance", "i-1"), ("instance", "i-2"), ("dispatcher", "d-1"), ("client", "me")):
            issue_certificate(root / ca, root / ca / name, CertificateRequest(role, name, ("127.0.0.1",)))
    issue_certificate(root / "ours", root / "ours" / "any", CertificateRequest("instance", "*"))
    issue_certificate(root / "ours", root / "ours" / "bare", CertificateRequest("client", "bare"))
    for name in ("cert.pem", "key.pem"):
        (root / "ours" / "bare" / name).unlink()
    return root


def ours(tls: Path, name: str) -> TlsIdentity:
    return TlsIdentity.load(tls / "ours" / name)


class Meeting:
    """One acceptor, one dialer, each with its certificate; `refused` is why they did not meet."""

    def __init__(self, answers: TlsIdentity | None, dials: TlsIdentity | None) -> None:
        self.answers = answers
        self.dials = dials
        self.peer = INSTANCE
        self.caller = DISPATCHER

    async def joined(self, caplog: pytest.LogCaptureFixture) -> str:
        """Empty if they met, else the last thing that the dialer said."""
        side = Acceptance(self.peer, security=self.answers)
        endpoint = await side.start()
        end = End(self.caller)
        dialer = StreamDialer(end.host, self.peer, endpoint, DISPATCH, backoff=QUICK, security=self.dials)
        try:
            await eventually(lambda: bool(end.core.heard or self._said(caplog)))
            return "" if end.core.heard and side.core.heard else self._said(caplog)
        finally:
            await dialer.stop()
            await side.server.stop(None)
            assert end.errors == side.errors == []

    def _said(self, caplog: pytest.LogCaptureFixture) -> str:
        return next((one.getMessage() for one in caplog.records if "stream to" in one.getMessage()), "")


def meet(caplog: pytest.LogCaptureFixture, meeting: Meeting) -> str:
    caplog.set_level("INFO")
    seen: list[str] = []

    async def scenario() -> None:
        seen.append(await meeting.joined(caplog))

    run(scenario)
    return seen[0]


def test_two_of_one_ca_meet(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert meet(caplog, Meeting(ours(tls, "i-1"), ours(tls, "d-1"))) == ""


def test_a_certificate_for_any_name_serves_every_instance(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert meet(caplog, Meeting(ours(tls, "any"), ours(tls, "d-1"))) == ""


def test_a_plaintext_caller_is_refused(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "UNAVAILABLE" in meet(caplog, Meeting(ours(tls, "i-1"), None))


def test_a_plaintext_server_is_refused(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "UNAVAILABLE" in meet(caplog, Meeting(None, ours(tls, "d-1")))


def test_a_caller_of_another_ca_is_refused(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = TlsIdentity.load(tls / "theirs" / "d-1")
    mixed = TlsIdentity(theirs.directory, ours(tls, "d-1").ca, theirs.certificate, theirs.key)
    assert "UNAVAILABLE" in meet(caplog, Meeting(ours(tls, "i-1"), mixed))


def test_a_server_of_another_ca_is_refused(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = TlsIdentity.load(tls / "theirs" / "i-1")
    mixed = TlsIdentity(theirs.directory, ours(tls, "d-1").ca, theirs.certificate, theirs.key)
    said = meet(caplog, Meeting(mixed, ours(tls, "d-1")))
    assert "CERTIFICATE_VERIFY_FAILED" in said


def test_a_client_that_claims_to_be_a_dispatcher_is_refused(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    said = meet(caplog, Meeting(ours(tls, "i-1"), ours(tls, "me")))
    assert "PERMISSION_DENIED" in said
    assert "shows the certificate of client.dunlin, me.client.dunlin" in said


def test_a_dispatcher_that_claims_another_ones_name_is_refused(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    meeting = Meeting(ours(tls, "i-1"), ours(tls, "d-1"))
    meeting.caller = Address("dispatcher", "d-2", 7)
    assert "PERMISSION_DENIED" in meet(caplog, meeting)


@pytest.mark.parametrize("holder", ["me", "d-1", "i-2"])
def test_only_the_wanted_process_can_answer(tls: Path, caplog: pytest.LogCaptureFixture, holder: str) -> None:
    said = meet(caplog, Meeting(ours(tls, holder), ours(tls, "d-1")))
    assert "Hostname Verification Check failed" in said


def test_a_strange_name_ends_nothing(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    meeting = Meeting(ours(tls, "i-1"), ours(tls, "d-1"))
    meeting.peer = Address("instance", "a\0b/ü", 3)
    assert "Hostname Verification Check failed" in meet(caplog, meeting)


def test_a_role_that_does_not_dial_this_conversation_is_refused_without_tls_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meeting = Meeting(None, None)
    meeting.caller = Address("kvstore", "k", 1)
    said = meet(caplog, meeting)
    assert "PERMISSION_DENIED: a kvstore does not dial Dispatch: only dispatcher" in said


def test_every_conversation_names_who_dials_it() -> None:
    services = {"dispatcher", "global_manager", "instance", "kvstore", "monitor"}
    assert all(one.callers and set(one.callers) <= services for one in STREAM_PROTOCOLS)


async def _info(tls: Path, certificate: str) -> InfoReply:
    async def info(request: InfoRequest, context: object) -> InfoReply:
        return InfoReply("m", 1, 1, "v", "")

    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((Methods({INFO: info}),))
    port = server.add_secure_port("127.0.0.1:0", ours(tls, "d-1").server_credentials())
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}", ours(tls, certificate)) as channel:
            return await call_async(channel, INFO, InfoRequest(), 5.0)
    finally:
        await server.stop(None)


def test_a_method_is_for_client_certificates(tls: Path) -> None:
    assert asyncio.run(_info(tls, "me")).model == "m"
    with pytest.raises(CallFailed, match=r"PERMISSION_DENIED: Info is for client certificates.*i-1\.instance\.dunlin"):
        asyncio.run(_info(tls, "i-1"))
    with pytest.raises(CallFailed, match="UNAVAILABLE"):
        asyncio.run(_info(tls, "bare"))


def test_what_a_certificate_proves() -> None:
    names = ("instance.dunlin", "i-1.instance.dunlin", "host.example")
    assert is_certificate_of(names, "instance", "i-1")
    assert not is_certificate_of(names, "instance", "I-1")
    assert not is_certificate_of(names, "instance", "i-2")
    assert not is_certificate_of(names, "dispatcher", "i-1")
    assert not is_certificate_of(names, "king", "i-1")
    assert not is_certificate_of(("*.instance.dunlin",), "instance", "*")
    assert not is_certificate_of((), "instance", "i-1")
    assert has_role(names, ("client", "instance"))
    assert not has_role(names, ("client",))
    assert server_name("global_manager", "b") == "b.global-manager.dunlin"
    assert server_name("instance", "not a label").startswith("name-")
    assert server_name("king") == "nobody.dunlin"


def copied(tls: Path, to: Path, **replaced: bytes) -> Path:
    """The files of i-1, some replaced by other bytes; empty: missing."""
    for name in ("ca", "cert", "key"):
        data = replaced.get(name, (tls / "ours" / "i-1" / f"{name}.pem").read_bytes())
        if data:
            (to / f"{name}.pem").write_bytes(data)
    return to


BROKEN = [
    ({"ca": b""}, r"cannot read .*ca\.pem: No such file"),
    ({"cert": b""}, r"cannot read .*cert\.pem: No such file"),
    ({"key": b""}, r"cannot read .*key\.pem: No such file"),
    ({"ca": b"nothing"}, r"ca\.pem is not a certificate in PEM form"),
    ({"ca": b"\xff"}, r"ca\.pem is not a certificate in PEM form"),
    ({"cert": b"nothing"}, r"cert\.pem and .*key\.pem are not a certificate and its key"),
    ({"key": b"nothing"}, r"cert\.pem and .*key\.pem are not a certificate and its key"),
]


@pytest.mark.parametrize(("replaced", "text"), BROKEN)
def test_files_that_are_no_good_are_named(tls: Path, tmp_path: Path, replaced: dict[str, bytes], text: str) -> None:
    with pytest.raises(StartError, match=text):
        TlsIdentity.load(copied(tls, tmp_path, **replaced))


def test_a_key_or_ca_of_another_process_is_named(tls: Path, tmp_path: Path) -> None:
    other_key = (tls / "ours" / "i-2" / "key.pem").read_bytes()
    with pytest.raises(StartError, match="are not a certificate and its key"):
        TlsIdentity.load(copied(tls, tmp_path, key=other_key))
    (tmp_path / "two").mkdir()
    other_ca = (tls / "theirs" / "ca.pem").read_bytes()
    with pytest.raises(StartError, match=r"cert\.pem does not hold against .*ca\.pem"):
        TlsIdentity.load(copied(tls, tmp_path / "two", ca=other_ca))


def test_a_certificate_that_is_over_is_named(tls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Past:
        @staticmethod
        def now(tz: object = None) -> datetime:
            return datetime.now(UTC) - timedelta(days=2)

    monkeypatch.setattr(certificates, "datetime", Past)
    issue_certificate(tls / "ours", tmp_path, CertificateRequest("instance", "i-1", days=1))
    with pytest.raises(StartError, match=r"cert\.pem does not hold.*expired"):
        TlsIdentity.load(tmp_path)


def test_the_last_day_is_known(tls: Path, tmp_path: Path) -> None:
    issue_certificate(tls / "ours", tmp_path, CertificateRequest("instance", "i-1", days=3))
    left_s = TlsIdentity.load(tmp_path).ends_s - datetime.now(UTC).timestamp()
    assert 0 <= 3 * 86_400 - left_s < 600


def test_a_service_takes_its_own_certificate_alone(tls: Path) -> None:
    assert TlsIdentity.load_for(tls / "ours" / "i-1", "instance", "i-1").names[0] == "instance.dunlin"
    with pytest.raises(StartError, match=r"is not for the instance 'i-2' .*dunlin certs issue"):
        TlsIdentity.load_for(tls / "ours" / "i-1", "instance", "i-2")
    with pytest.raises(StartError, match="it names no certificate"):
        TlsIdentity.load_for(tls / "ours" / "bare", "instance", "i-1")


def test_plain_sockets_check_names_as_well(tls: Path) -> None:
    server = ours(tls, "i-1").server_context()
    client = ours(tls, "d-1").client_context()
    assert _shakes_hands(client, server, server_name("instance", "i-1"))
    assert not _shakes_hands(client, server, server_name("instance", "i-2"))
    assert not _shakes_hands(ours(tls, "bare").client_context(), server, server_name("instance", "i-1"))
    open_to_all = ours(tls, "i-1").server_context(demands_certificate=False)
    assert _shakes_hands(ours(tls, "bare").client_context(), open_to_all, "127.0.0.1")


def _shakes_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bool:
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True)]
    try:
        for end in ends * 4:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    except ssl.SSLError:
        return False
    return True
