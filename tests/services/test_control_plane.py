"""Monitor, manager and kvstore as processes; a stand-in plays the instance, another the dispatcher."""

import asyncio
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.messages.dispatch import Accepted
from dunlin.messages.fleet import (
    EXPLAIN,
    STATUS,
    ExplainQuery,
    Explanation,
    FleetStatus,
    FleetView,
    InstanceReport,
    StatusQuery,
)
from dunlin.messages.plan import GroupOrder, GroupOrderDone
from dunlin.messages.pool import CommitRegion, RegionReserved, ReserveRegion, TierReady
from dunlin.messages.types import Figure, Region, Why
from dunlin.telemetry.decisions import DecisionRecord
from dunlin.telemetry.explain import explain
from dunlin.wire.channels import open_channel
from dunlin.wire.codec import decode
from dunlin.wire.envelopes import PLAN, POOL
from dunlin.wire.rpc.methods import stub
from dunlin.wire.service.options import ServiceOptions
from dunlin.wire.service.service import ServiceProcess

pytestmark = pytest.mark.processes

NODE = "node-t"
TIER_BYTES = 1 << 20


DISPATCHER = Address("dispatcher", "d9", 0xD1)


@dataclass(frozen=True, slots=True)
class Beat:
    """The stand-in's own timer."""


@dataclass(frozen=True, slots=True)
class Decide:
    """For the stand-in: accept request 5 of a dispatcher."""

    why: Why


class InstanceStandIn:
    """Obeys orders, reports, writes one region; `reports` False makes it fall silent."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.report = InstanceReport(ready=True, capacity_slots=100, free_slots=100)
        self.reports = True
        self.orders: list[GroupOrder] = []
        self.tier: TierReady | None = None
        self.reserved: RegionReserved | None = None
        self.monitors: dict[Address, None] = {}

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        match message:
            case Joined() if sender.role == "monitor":
                self.monitors[sender] = None
                return [Send(sender, self.report), After(0.1, Beat())]
            case Gone():
                self.monitors.pop(sender, None)
            case Beat():
                return [*self._reports(), After(0.1, Beat())] if self.monitors else []
            case GroupOrder():
                self.orders.append(message)
                order = replace(
                    self.report, epoch=message.epoch, plan_version=message.plan_version, group=message.group
                )
                self.report = order
                return [Send(sender, GroupOrderDone(message.epoch, message.plan_version)), *self._reports()]
            case Decide():
                return [Send(DISPATCHER, Accepted(5, 1, 9, why=message.why))]
            case TierReady():
                self.tier = message
                region = ReserveRegion(1, Address("dispatcher", "d", 1), 1, 1, Region(0, 1, 0, 4), 4096, "fp32", "w")
                return [Send(sender, region)]
            case RegionReserved():
                self.reserved = message
                return [Send(sender, CommitRegion(message.host.handle, message.host.generation, 77))]
        return []

    def _reports(self) -> list[Effect]:
        return [Send(monitor, self.report) for monitor in self.monitors] if self.reports else []


class Sink:
    """An outlet into nothing: the host records what it delivered."""

    def send(self, message: Message) -> bool:
        return True

    def close(self, reason: str) -> None: ...


class DispatcherStandIn:
    """Keeps what the monitor tells."""

    def __init__(self, address: Address) -> None:
        self.views: list[tuple[float, FleetView]] = []

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, FleetView):
            self.views.append((time.monotonic(), message))
        return []

    def latest(self, name: str) -> Any:
        """The newest word about an instance."""
        found = [member for _, view in self.views for member in view.members if member.address.name == name]
        return found[-1] if found else None


class Processes:
    """The services under test, each with its log."""

    def __init__(self, etcd: str, folder: Path) -> None:
        self.etcd = etcd
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, role: str, name: str, *flags: str) -> "subprocess.Popen[bytes]":
        common = ["--name", name, "--node", NODE, "--etcd", self.etcd, "--parent-pid", str(os.getpid())]
        command = [sys.executable, "-m", f"services.{role}", *common, "--lease-ttl-s", "2", *flags]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self.running.append(process)
        return process

    def stop(self) -> list[int]:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        return [process.wait(300) for process in self.running]


@contextmanager
def processes(etcd: str, folder: Path) -> Iterator[Processes]:
    started = Processes(etcd, folder)
    try:
        yield started
    finally:
        started.stop()
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()}")


@asynccontextmanager
async def stand_in(role: str, name: str, etcd: str, make: Callable[[Address], Any], **roles: Any) -> AsyncIterator[Any]:
    service = ServiceProcess(ServiceOptions(role, name, (etcd,), node=NODE, lease_ttl_s=2))
    cores: list[Any] = []

    def make_core(address: Address) -> Any:
        cores.append(make(address))
        return cores[0]

    await service.start(make_core, **roles)
    try:
        yield cores[0], service
    finally:
        await service.stop()


def instance(name: str, etcd: str) -> Any:
    dials = {"kvstore": POOL}
    return stand_in("instance", name, etcd, InstanceStandIn, accepts=[PLAN], dials=dials, same_node=["kvstore"])


def dispatcher(name: str, etcd: str) -> Any:
    return stand_in("dispatcher", name, etcd, DispatcherStandIn)


async def until(condition: Callable[[], Any], within_s: float = 300.0) -> Any:
    began_s = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - began_s < within_s, f"not within {within_s} s"
        await asyncio.sleep(0.02)
    return found


async def ask(port: int, method: Any, query: Any) -> Any:
    channel = open_channel(f"127.0.0.1:{port}")
    try:
        return await stub(channel, method)(query, timeout=30, wait_for_ready=True)
    finally:
        await channel.close()


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def scrape(port: int) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
        return str(page.read().decode())


def test_views_orders_tier_and_tools(etcd_endpoint: str, tmp_path: Path) -> None:
    port, metrics_port = free_ports(2)

    async def scenario(started: Processes) -> None:
        async with instance("i0", etcd_endpoint) as (i0, service), dispatcher("d0", etcd_endpoint) as (d0, _):
            member = await until(lambda: (seen := d0.latest("i0")) and seen.plan_version and seen)
            assert (member.ready, member.suspect, member.group, member.plan_version) == (True, False, 1, 1)
            assert i0.orders[0].members == (service.address,)
            await until(lambda: i0.reserved)
            tier = check_tier(i0)
            assert tier.size_bytes == TIER_BYTES
            await check_tools(port, metrics_port, service)

    with processes(etcd_endpoint, tmp_path) as started:
        started.start("monitor", "m0", "--listen", f"127.0.0.1:{port}", "--metrics-port", str(metrics_port))
        started.start("global_manager", "g0")
        started.start("kvstore", "kv0", "--host-tier-bytes", str(TIER_BYTES))
        asyncio.run(scenario(started))
        assert started.stop() == [0, 0, 0]


def check_tier(instance: InstanceStandIn) -> TierReady:
    """What an engine does: map the tier by its path and write where the room is."""
    assert instance.tier is not None
    assert instance.reserved is not None
    host = instance.reserved.host
    descriptor = os.open(instance.tier.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with mmap.mmap(descriptor, instance.tier.size_bytes) as memory:
            memory[host.offset_bytes : host.offset_bytes + 4] = b"KVKV"
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 1)
        assert os.fstat(descriptor).st_blocks * 512 == instance.tier.size_bytes
    finally:
        os.close(descriptor)
    return instance.tier


async def check_tools(port: int, metrics_port: int, service: ServiceProcess) -> None:
    status = await ask(port, STATUS, StatusQuery())
    assert isinstance(status, FleetStatus)
    lines = {line.address.role: line for line in status.members}
    assert list(lines) == ["dispatcher", "global_manager", "instance", "kvstore", "monitor"]
    assert lines["instance"].pid == os.getpid()
    assert lines["instance"].instance is not None
    assert lines["global_manager"].manager is not None
    assert lines["global_manager"].manager.plan_version == 1
    page = await asyncio.to_thread(scrape, metrics_port)
    assert f'dunlin_instance_free_slots{{name="i0",node="{NODE}"}} 100.0' in page
    why = Why("test", "yes", (Figure("slots", 3),))
    service.host.attach(DISPATCHER, Sink())
    service.host.deliver(DISPATCHER, Decide(why))
    await until_explained(port, f"req-{DISPATCHER.incarnation:x}-5")


async def until_explained(port: int, request: str) -> None:
    """The instance's acceptance and the manager's order come together in one explanation."""
    for _ in range(1000):
        answer = await ask(port, EXPLAIN, ExplainQuery(request))
        assert isinstance(answer, Explanation)
        kinds = [reason.kind for reason in answer.reasons]
        if kinds == ["GroupOrder", "Accepted"]:
            break
        await asyncio.sleep(0.05)
    records = [DecisionRecord(one.at_s, one.sender, one.to, decode(one.kind, one.payload)) for one in answer.reasons]
    lines = explain(records, request)
    assert "g0 ordered i0 into local group 1" in lines[0]
    assert lines[1].endswith("i0 accepted attempt 1 as its sequence 9, because test chose yes with slots 3.")


def test_a_silent_instance_is_suspect_and_a_stopped_monitor_is_not_fooled(etcd_endpoint: str, tmp_path: Path) -> None:
    async def scenario(monitor: "subprocess.Popen[bytes]") -> None:
        async with instance("i1", etcd_endpoint) as (i1, _), dispatcher("d1", etcd_endpoint) as (d1, _):
            await until(lambda: (seen := d1.latest("i1")) and seen.ready)
            i1.reports = False
            why = (await until(lambda: (seen := d1.latest("i1")).suspect and seen)).why
            figures = {figure.name: figure.value for figure in why.figures}
            assert (why.policy, figures["limit_s"]) == ("silence", 3.0)
            assert figures["silent_s"] >= figures["limit_s"]
            i1.reports = True
            await until(lambda: not d1.latest("i1").suspect)
            monitor.send_signal(signal.SIGSTOP)
            await asyncio.sleep(4.0)
            monitor.send_signal(signal.SIGCONT)
            seen = len(d1.views)
            await asyncio.sleep(1.0)
            assert not [view for _, view in d1.views[seen:] for member in view.members if member.suspect]

    with processes(etcd_endpoint, tmp_path) as started:
        asyncio.run(scenario(started.start("monitor", "m1")))


def test_the_next_manager_leads_with_a_higher_epoch(etcd_endpoint: str, tmp_path: Path) -> None:
    async def scenario(started: Processes) -> None:
        async with instance("i2", etcd_endpoint) as (i2, _):
            first = await until(lambda: i2.orders and i2.orders[-1])
            other = started.start("global_manager", "g2b")
            await asyncio.sleep(1.0)
            started.running[1].kill()
            second = await until(lambda: i2.orders[-1].epoch > first.epoch and i2.orders[-1])
            assert (second.group, second.plan_version) == (first.group, 1)
            assert other.poll() is None

    with processes(etcd_endpoint, tmp_path) as started:
        started.start("monitor", "m2")
        started.start("global_manager", "g2a")
        asyncio.run(scenario(started))


@pytest.mark.parametrize(
    ("role", "flags", "said"),
    [
        ("kvstore", ["--tier-bytes", str(1 << 50)], "no room for a host tier"),
        ("kvstore", ["--tier-bytes", "5"], "at least 4096"),
        ("monitor", ["--stuck-s", "nan"], "needs a finite number of seconds, above 0"),
        ("monitor", ["--metrics-port", "70000"], "choose one from 0 to 65535"),
        ("global_manager", ["--group-policy", "rings"], "invalid choice"),
    ],
)
def test_a_service_that_cannot_start_says_why(
    etcd_endpoint: str, tmp_path: Path, role: str, flags: list[str], said: str
) -> None:
    with processes(etcd_endpoint, tmp_path) as started:
        process = started.start(role, "x", *flags)
        assert process.wait(300) == 2
        last = (tmp_path / "x.log").read_text().splitlines()[-1]
        assert said in last
