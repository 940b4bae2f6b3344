import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from dunlin.auth.certificates import CertificateRequest, issue_certificate, make_ca
from dunlin.effects import Address
from dunlin.membership.failure_detector import ProbeVerdict
from dunlin.messages.membership import Member
from dunlin.wire.rpc.server import GrpcServer
from dunlin.wire.security import TlsIdentity
from dunlin.wire.streams.prober import LivenessProber, health_name
from tests.wire.ends import run

SELF = Address("instance", "i", 3)


def member(endpoint: str, incarnation: int = 3) -> Member:
    return Member(Address("instance", "i", incarnation), endpoint, "node", 42)


def prober(connected: Sequence[Address] = (), deadline_s: float = 50.0) -> LivenessProber:
    return LivenessProber(lambda address: address in connected, deadline_s=deadline_s)


@asynccontextmanager
async def served(
    address: Address = SELF, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[tuple[GrpcServer, str]]:
    server = GrpcServer("127.0.0.1:0", credentials)
    await server.start([], [], health_name(address))
    yield server, f"127.0.0.1:{server.port}"
    await server.stop(0.0)


@asynccontextmanager
async def listening(answer: bytes) -> AsyncIterator[str]:
    """Somebody who accepts connections, says `answer`, and no more."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


def test_a_process_that_serves_lives() -> None:
    async def scenario() -> None:
        async with served() as (_, endpoint):
            assert await prober().probe(member(endpoint)) is ProbeVerdict.ALIVE

    run(scenario)


def test_one_that_is_leaving_is_gone_though_it_still_answers() -> None:
    async def scenario() -> None:
        async with served() as (server, endpoint):
            await server.set_not_serving()
            assert await prober().probe(member(endpoint)) is ProbeVerdict.GONE

    run(scenario)


@pytest.mark.parametrize(
    "other", [Address("instance", "i", 4), Address("instance", "j", 3), Address("kvstore", "i", 3)]
)
def test_another_process_at_its_port_does_not_speak_for_it(other: Address) -> None:
    async def scenario() -> None:
        async with served(other) as (_, endpoint):
            assert await prober().probe(member(endpoint)) is ProbeVerdict.GONE

    run(scenario)


def test_where_no_process_listens_it_is_gone_at_once() -> None:
    async def scenario() -> None:
        # After the deadline it would be silent.
        assert await prober(deadline_s=10_000.0).probe(member("127.0.0.1:1")) is ProbeVerdict.GONE

    run(scenario)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 100], ids=["nothing", "http", "0"]
)
def test_no_answer_proves_nothing_and_ends_with_the_deadline(answer: bytes) -> None:
    async def scenario() -> None:
        async with listening(answer) as endpoint:
            assert await prober(deadline_s=0.5).probe(member(endpoint)) is ProbeVerdict.SILENT

    run(scenario)


@pytest.mark.parametrize("endpoint", ["", "nowhere", "no such host.invalid:1", "127.0.0.1:99999"])
def test_an_endpoint_that_is_none_proves_nothing(endpoint: str) -> None:
    async def scenario() -> None:
        assert await prober().probe(member(endpoint)) is ProbeVerdict.SILENT

    run(scenario)


def test_an_open_stream_is_proof_enough() -> None:
    async def scenario() -> None:
        assert await prober(connected=[SELF]).probe(member("127.0.0.1:1")) is ProbeVerdict.ALIVE
        assert await prober(connected=[SELF]).probe(member("127.0.0.1:1", incarnation=4)) is ProbeVerdict.GONE

    run(scenario)


def test_over_tls_only_the_right_certificate_speaks_for_a_process(tmp_path: Path) -> None:
    make_ca(tmp_path)
    for role, name in (("instance", "i"), ("instance", "j"), ("monitor", "m")):
        issue_certificate(tmp_path, tmp_path / name, CertificateRequest(role, name, ("127.0.0.1",)))
    mine = TlsIdentity.load(tmp_path / "m")

    async def probed(name: str, security: TlsIdentity | None) -> ProbeVerdict:
        async with served(credentials=TlsIdentity.load(tmp_path / name).server_credentials()) as (_, endpoint):
            return await LivenessProber(lambda _: False, security).probe(member(endpoint))

    async def scenario() -> None:
        assert await probed("i", mine) is ProbeVerdict.ALIVE
        assert await probed("j", mine) is ProbeVerdict.SILENT
        assert await probed("i", None) is ProbeVerdict.SILENT

    run(scenario)


def test_hundreds_of_probes_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = [0]
    ask = LivenessProber._ask

    async def counted(asked: LivenessProber, one: Member) -> ProbeVerdict:
        at_once.append(at_once[-1] + 1)
        try:
            return await ask(asked, one)
        finally:
            at_once.append(at_once[-1] - 1)

    monkeypatch.setattr(LivenessProber, "_ask", counted)

    async def scenario() -> None:
        async with served() as (_, endpoint):
            asked = prober()
            verdicts = await asyncio.gather(*(asked.probe(member(endpoint)) for _ in range(300)))
            assert set(verdicts) == {ProbeVerdict.ALIVE}

    run(scenario)
    assert (len(at_once), max(at_once)) == (601, 16)


def test_a_probe_has_its_whole_deadline_from_its_turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dunlin.wire.streams.prober._AT_ONCE", 1)
    began: list[str] = []

    async def never(asked: LivenessProber, one: Member) -> ProbeVerdict:
        began.append(one.endpoint)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(LivenessProber, "_ask", never)

    async def scenario() -> None:
        asked = prober(deadline_s=0.05)
        verdicts = await asyncio.gather(*(asked.probe(member(name)) for name in "abc"))
        assert verdicts == [ProbeVerdict.SILENT] * 3

    run(scenario)
    assert began == ["a", "b", "c"]

    run(scenario)
