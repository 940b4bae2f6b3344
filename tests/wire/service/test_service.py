"""The common runtime against a real etcd: two services in one process, and a whole process that is killed."""

import asyncio
import itertools
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dunlin.effects import Address, Effect, Gone, Joined, Message, Send
from dunlin.membership.embedded import EmbeddedConfig, EmbeddedEtcd
from dunlin.messages.dispatch import Accepted, Cancel, Ended, Place
from dunlin.messages.fleet import Reasons
from dunlin.messages.membership import Member, MemberDown, MembersReset, MemberUp
from dunlin.messages.types import Why, i32
from dunlin.wire.channels import open_channel
from dunlin.wire.codec import decode
from dunlin.wire.envelopes import DISPATCH, FLEET, POOL
from dunlin.wire.errors import StartError
from dunlin.wire.service import decision_log
from dunlin.wire.service.options import ServiceOptions
from dunlin.wire.service.service import ETCD, ServiceProcess

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 300.0
_numbers = itertools.count()

Script = Callable[[Address, Message], Sequence[Effect]]


@dataclass
class Ear:
    """Records what it hears, answers by `script`."""

    address: Address
    script: Script = lambda sender, message: ()
    heard: list[tuple[Address, Message]] = field(default_factory=list)

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        self.heard.append((sender, message))
        return self.script(sender, message)

    def of(self, sender: Address) -> list[Message]:
        return [message for who, message in self.heard if who == sender]


def options_of(role: str, endpoint: str, **changes: Any) -> ServiceOptions:
    defaults: dict[str, Any] = {"role": role, "name": f"{role}-{next(_numbers)}", "etcd": (endpoint,), "node": "here"}
    return ServiceOptions(**{**defaults, **changes})


@asynccontextmanager
async def serving(
    options: ServiceOptions, script: Script = lambda sender, message: (), **start: Any
) -> AsyncIterator[tuple[ServiceProcess, Ear]]:
    service, ears = ServiceProcess(options), []

    def make_core(address: Address) -> Ear:
        ears.append(Ear(address, script))
        return ears[-1]

    await service.start(make_core, **start)
    try:
        yield service, ears[0]
    finally:
        await service.stop()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(400):
            await scenario()

    asyncio.run(bounded())


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


def test_services_find_each_other_join_and_part(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        dispatcher_options = options_of("dispatcher", etcd_endpoint)
        async with serving(dispatcher_options, dials={"instance": DISPATCH}) as (dispatcher, d_ear):
            await eventually(lambda: bool(d_ear.of(ETCD)))  # else the instance may be in the first snapshot already
            own = d_ear.of(ETCD)[0]
            assert isinstance(own, MembersReset)
            assert dispatcher.address in [member.address for member in own.members]
            async with serving(options_of("instance", etcd_endpoint), accepts=[DISPATCH]) as (instance, i_ear):
                await eventually(lambda: d_ear.of(instance.address) == [Joined()])
                await eventually(lambda: i_ear.of(dispatcher.address) == [Joined()])
                assert instance.address.incarnation > dispatcher.address.incarnation > 0
                up = next(m for m in d_ear.of(ETCD) if isinstance(m, MemberUp))
                assert (up.member.address, up.member.endpoint) == (instance.address, instance.endpoint)
            await eventually(lambda: MemberDown(instance.address) in d_ear.of(ETCD))
            await eventually(lambda: isinstance(d_ear.of(instance.address)[-1], Gone))
            assert len(d_ear.of(instance.address)) == 2

    run(scenario)


def test_only_members_of_the_own_node_are_dialled_where_that_is_asked(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        here = options_of("kvstore", etcd_endpoint, node="here")
        there = options_of("kvstore", etcd_endpoint, node="there")
        instance = options_of("instance", etcd_endpoint, node="here")
        async with (
            serving(there, accepts=[POOL]) as (_, far_ear),
            serving(here, accepts=[POOL]) as (_, near_ear),
            serving(instance, dials={"kvstore": POOL}, same_node=("kvstore",)) as (dialling, _),
        ):
            await eventually(lambda: near_ear.of(dialling.address) == [Joined()])
            await asyncio.sleep(0.2)
            assert far_ear.of(dialling.address) == []

    run(scenario)


def test_reasons_reach_every_monitor(etcd_endpoint: str) -> None:
    why = Why("least_loaded", "a")

    async def scenario() -> None:
        place = Place(1, 1, i32([1, 2]), 2, 5, why=why)

        def script(sender: Address, message: Message) -> Sequence[Effect]:
            return [Send(sender, place)] if sender.role == "instance" and message == Joined() else ()

        async with (
            serving(options_of("monitor", etcd_endpoint), accepts=[FLEET]) as (_, one),
            serving(options_of("monitor", etcd_endpoint), accepts=[FLEET]) as (_, two),
            serving(options_of("dispatcher", etcd_endpoint), script, dials={"instance": DISPATCH}) as (dispatcher, _),
            serving(options_of("instance", etcd_endpoint), accepts=[DISPATCH]) as (instance, _),
        ):
            for ear in (one, two):
                await eventually(lambda ear=ear: any(isinstance(m, Reasons) for m in ear.of(dispatcher.address)))  # type: ignore[misc]
                batch = next(m for m in ear.of(dispatcher.address) if isinstance(m, Reasons))
                assert batch.lost == 0
                (reason,) = batch.reasons
                assert (reason.sender, reason.to, reason.kind) == (dispatcher.address, instance.address, "Place")
                assert decode(reason.kind, reason.payload) == place

    run(scenario)


def test_the_last_reasons_arrive_before_a_service_is_gone(etcd_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_log, "_INTERVAL_S", 3_600.0)

    async def scenario() -> None:
        def script(sender: Address, message: Message) -> Sequence[Effect]:
            return [Send(sender, Accepted(message.request, 1, 1, why=Why("p")))] if isinstance(message, Cancel) else ()

        async with (
            serving(options_of("monitor", etcd_endpoint), accepts=[FLEET]) as (monitor, ear),
            serving(options_of("dispatcher", etcd_endpoint), dials={"instance": DISPATCH}) as (dispatcher, d_ear),
        ):
            async with serving(options_of("instance", etcd_endpoint), script, accepts=[DISPATCH]) as (instance, i_ear):
                await eventually(lambda: i_ear.of(monitor.address) == [Joined()])
                await eventually(lambda: d_ear.of(instance.address) == [Joined()])
                dispatcher.host.send(instance.address, Cancel(7, 1))
                await eventually(lambda: len(d_ear.of(instance.address)) == 2)
            await eventually(lambda: any(isinstance(m, Gone) for m in ear.of(instance.address)))
            told = [r for m in ear.of(instance.address) if isinstance(m, Reasons) for r in m.reasons]
            assert [reason.kind for reason in told] == ["Accepted"]

    run(scenario)


def test_health_and_reflection_name_the_conversations(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with serving(options_of("instance", etcd_endpoint), accepts=[DISPATCH]) as (instance, _):
            async with open_channel(instance.endpoint) as channel:
                health: Any = health_pb2_grpc.HealthStub(channel)
                for name in ("", "dunlin.v1.Dispatch"):
                    answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
                    assert answer.status == health_pb2.HealthCheckResponse.SERVING
                told: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
                request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="dunlin.v1.Dispatch")
                listing = reflection_pb2.ServerReflectionRequest(list_services="")
                call = told.ServerReflectionInfo(iter([request, listing]))
                first, second = [response async for response in call]
                assert first.file_descriptor_response.file_descriptor_proto
                assert "dunlin.v1.Dispatch" in [s.name for s in second.list_services_response.service]

    run(scenario)


def test_a_port_in_use_is_a_clear_start_error(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            service = ServiceProcess(options_of("instance", etcd_endpoint, listen=listen))
            with pytest.raises(StartError, match=f"cannot listen on {listen}"):
                await service.start(Ear)

    run(scenario)


def test_two_services_do_not_share_a_port(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with serving(options_of("instance", etcd_endpoint)) as (first, _):
            second = ServiceProcess(options_of("instance", etcd_endpoint, listen=first.endpoint))
            with pytest.raises(StartError, match="in use"):
                await second.start(Ear)

    run(scenario)


def test_no_etcd_is_a_clear_start_error_after_a_bounded_wait() -> None:
    async def scenario() -> None:
        service = ServiceProcess(options_of("instance", "127.0.0.1:1", start_timeout_s=0.5))
        with pytest.raises(StartError, match=r"--etcd 127\.0\.0\.1:1"):
            await service.start(Ear)

    run(scenario)


@pytest.mark.parametrize("changes", [{"etcd": ("nonsense",)}, {"etcd": ()}, {"name": "a/b"}])
def test_options_that_cannot_be_meant_are_start_errors(changes: dict[str, Any]) -> None:
    async def scenario() -> None:
        with pytest.raises(StartError):
            await ServiceProcess(options_of("instance", "127.0.0.1:1", **changes)).start(Ear)

    run(scenario)


def test_a_newer_process_of_the_same_name_ends_the_older_one(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        options = options_of("instance", etcd_endpoint, lease_ttl_s=2)
        async with serving(options) as (older, _), serving(options) as (newer, _):
            assert newer.address.incarnation > older.address.incarnation
            async with asyncio.timeout(PATIENCE_S):
                await older.wait_for_stop()
            assert await older.stop() == 1
            assert await newer.stop() == 0

    run(scenario)


def test_losing_etcd_ends_no_stream_and_no_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        etcd = await EmbeddedEtcd.start(EmbeddedConfig(tmp_path))
        instance_options = options_of("instance", etcd.endpoint, lease_ttl_s=2)
        dispatcher_options = options_of("dispatcher", etcd.endpoint, lease_ttl_s=2)
        async with (
            serving(instance_options, accepts=[DISPATCH]) as (instance, i_ear),
            serving(dispatcher_options, dials={"instance": DISPATCH}) as (dispatcher, d_ear),
        ):
            await eventually(lambda: d_ear.of(instance.address) == [Joined()])
            await eventually(lambda: i_ear.of(dispatcher.address) == [Joined()])
            await etcd.stop(grace_s=0.0)
            await asyncio.sleep(3.0)  # longer than the leases
            assert dispatcher.host.send(instance.address, Cancel(1, 1))
            await eventually(lambda: i_ear.of(dispatcher.address) == [Joined(), Cancel(1, 1)])
            assert d_ear.of(instance.address) == [Joined()]

    run(scenario)


def test_a_lease_lost_under_a_live_process_costs_it_nothing(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        instance_options = options_of("instance", etcd_endpoint, lease_ttl_s=2)
        async with (
            serving(instance_options, accepts=[DISPATCH]) as (instance, _),
            serving(options_of("dispatcher", etcd_endpoint), dials={"instance": DISPATCH}) as (dispatcher, d_ear),
            serving(options_of("monitor", etcd_endpoint)) as (_, stranger_ear),
        ):
            await eventually(lambda: d_ear.of(instance.address) == [Joined()])
            key = f"/dunlin/members/instance/{instance.address.name}"
            record = await dispatcher.etcd.get(key)
            assert record is not None
            # The dispatcher knows by its stream that the instance lives, the other one has to ask.
            before = {ear.address: len(ear.of(ETCD)) for ear in (d_ear, stranger_ear)}
            await dispatcher.etcd.revoke(record.lease_id)
            back = MemberUp(Member(instance.address, instance.endpoint, "here", os.getpid()))
            for ear in (d_ear, stranger_ear):
                await eventually(lambda ear=ear: back in ear.of(ETCD)[before[ear.address] :])  # type: ignore[misc]
                assert MemberDown(instance.address) not in ear.of(ETCD)
            assert dispatcher.host.send(instance.address, Cancel(1, 1))
            assert d_ear.of(instance.address) == [Joined()]

    run(scenario)


def ups(heard: Sequence[tuple[Address, Message]]) -> set[Address]:
    return {message.member.address for _, message in heard if isinstance(message, MemberUp)}


def members_heard(ear: Ear) -> set[Address]:
    resets = [message for _, message in ear.heard if isinstance(message, MembersReset)]
    return ups(ear.heard) | {member.address for reset in resets for member in reset.members}


@asynccontextmanager
async def five_services(endpoint: str) -> AsyncIterator[list[tuple[ServiceProcess, Ear]]]:
    """All with leases of 2 s; each knows all others, and the dispatcher has its streams."""
    async with AsyncExitStack() as stack:
        starts: list[tuple[str, dict[str, Any]]] = [
            ("monitor", {"accepts": [FLEET]}),
            ("dispatcher", {"dials": {"instance": DISPATCH}}),
            *[("instance", {"accepts": [DISPATCH]})] * 3,
        ]
        five = [
            await stack.enter_async_context(serving(options_of(role, endpoint, lease_ttl_s=2), **start))
            for role, start in starts
        ]
        addresses = {service.address for service, _ in five}
        await eventually(lambda: all(members_heard(ear) == addresses for _, ear in five))
        d_ear = five[1][1]
        await eventually(lambda: sum(message == Joined() for _, message in d_ear.heard) == 4)
        yield five


def test_when_etcd_forgets_all_members_the_membership_freezes_and_none_dies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        etcd = await EmbeddedEtcd.start(EmbeddedConfig(tmp_path))  # its own: every process in it loses the lease
        async with five_services(etcd.endpoint) as five:
            client = five[0][0].etcd
            addresses = {service.address for service, _ in five}
            records = (await client.get_prefix("/dunlin/members/")).items
            assert len(records) == 5
            marks = [len(ear.heard) for _, ear in five]
            await asyncio.gather(*(client.revoke(record.lease_id) for record in records))
            for (_, ear), mark in zip(five, marks, strict=True):
                await eventually(lambda ear=ear, mark=mark: ups(ear.heard[mark:]) == addresses)  # type: ignore[misc]
                assert not [message for _, message in ear.heard[mark:] if isinstance(message, MemberDown | Gone)]
        await etcd.stop()

    with caplog.at_level("INFO"):
        run(scenario)
    assert "membership frozen: " in caplog.text
    assert "membership no longer frozen" in caplog.text


class Program:
    """`tests/wire/program.py` as a process."""

    def __init__(self, process: asyncio.subprocess.Process, address: Address, endpoint: str) -> None:
        self.process = process
        self.address = address
        self.endpoint = endpoint

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()


async def spawn(*flags: str) -> asyncio.subprocess.Process:
    command = (sys.executable, "-m", "tests.wire.program", *flags)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe, stderr=pipe)


@asynccontextmanager
async def program(etcd: str) -> AsyncIterator[Program]:
    name = f"program-{next(_numbers)}"
    process = await spawn("--name", name, "--etcd", etcd)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            incarnation, endpoint = (await process.stdout.readline()).decode().split()
        yield Program(process, Address("instance", name, int(incarnation)), endpoint)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 0), (signal.SIGINT, 0)], ids=["kill", "term", "int"]
)
def test_a_process_that_ends_is_gone_at_its_peers(etcd_endpoint: str, number: signal.Signals, code: int) -> None:
    async def scenario() -> None:
        dispatcher_options = options_of("dispatcher", etcd_endpoint)
        async with (
            program(etcd_endpoint) as instance,
            serving(dispatcher_options, dials={"instance": DISPATCH}) as (dispatcher, ear),
        ):
            await eventually(lambda: ear.of(instance.address) == [Joined()])
            dispatcher.host.send(instance.address, Cancel(1, 1))
            await eventually(lambda: ear.of(instance.address) == [Joined(), Ended(1, 1)])
            instance.process.send_signal(number)
            await eventually(lambda: isinstance(ear.of(instance.address)[-1], Gone))
            assert await instance.exit_code() == code
            assert len(ear.of(instance.address)) == 3

    run(scenario)


@pytest.mark.processes
def test_a_hung_process_without_a_lease_counts_as_gone_and_comes_back(
    etcd_endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with (
            program(etcd_endpoint) as instance,
            serving(options_of("monitor", etcd_endpoint)) as (stranger, ear),
        ):
            # A member that is gone before the first snapshot was never one.
            await eventually(lambda: instance.address in members_heard(ear))
            record = await stranger.etcd.get(f"/dunlin/members/instance/{instance.address.name}")
            assert record is not None
            instance.process.send_signal(signal.SIGSTOP)
            await stranger.etcd.revoke(record.lease_id)
            await eventually(lambda: MemberDown(instance.address) in ear.of(ETCD))
            # One silence is no death; nothing else than silence was its end.
            probed = [said for said in caplog.messages if said.startswith(f"{instance.address} is not registered")]
            assert [said.rsplit(" ", 1)[-1] for said in probed] == ["silent", "silent"]
            count = len(ear.of(ETCD))
            instance.process.send_signal(signal.SIGCONT)
            back = MemberUp(Member(instance.address, instance.endpoint, socket.gethostname(), instance.process.pid))
            await eventually(lambda: back in ear.of(ETCD)[count:])

    with caplog.at_level("DEBUG", logger="dunlin.wire.service.membership"):
        run(scenario)


@pytest.mark.processes
def test_a_core_that_fails_ends_its_process_and_says_why(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        dispatcher_options = options_of("dispatcher", etcd_endpoint)
        async with (
            program(etcd_endpoint) as instance,
            serving(dispatcher_options, dials={"instance": DISPATCH}) as (dispatcher, ear),
        ):
            await eventually(lambda: ear.of(instance.address) == [Joined()])
            dispatcher.host.send(instance.address, Cancel(666, 1))
            assert await instance.exit_code() == 70
            assert "ValueError: a planted mistake" in await instance.errors()
            await eventually(lambda: isinstance(ear.of(instance.address)[-1], Gone))

    run(scenario)


@pytest.mark.processes
def test_a_process_that_cannot_start_says_one_line_and_exits_with_2(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            process = await spawn("--name", "late", "--etcd", etcd_endpoint, "--listen", listen)
            out, err = await process.communicate()
        assert process.returncode == 2
        assert out == b""
        assert f"dunlin instance/late: cannot listen on {listen}" in err.decode()
        assert "Traceback" not in err.decode()

    run(scenario)
