"""A cluster that a test drives step by step: it submits requests, kills processes and moves time on.

Reasons, which a live host forwards to the monitor, are forwarded on call, so that a test decides when.
"""

from dataclasses import replace
from itertools import count
from typing import Any

from dunlin.effects import Address, Effect, Gone, Message
from dunlin.messages.door import Abort, Submit
from dunlin.messages.fleet import Reason, Reasons
from dunlin.messages.plan import DrainRequest
from dunlin.messages.types import SamplingParams, i32
from services.dispatcher.core import DispatcherCore
from services.global_manager.core import GlobalManagerCore
from services.instance.core import InstanceCore
from services.kvstore.core import KvstoreCore
from services.monitor.core import MonitorCore
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from simulator.cluster.recording_client import RecordingClient
from simulator.cluster.simulated import SimulatedCluster
from simulator.cluster.spec import spec_of
from simulator.engine.errors import ContractBroken
from simulator.engine.host_memory import SimulatedHostMemory


class SilentPeer:
    """A peer that answers nothing."""

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Ignore the message."""
        return []


class ScriptedCluster(SimulatedCluster):
    """A cluster by the flat settings of `simulator.cluster.spec.spec_of`, and its clients.

    `kvstore` and `tier` are the first node's; `dispatcher` and `manager` are the first of several.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(spec_of(**settings))
        self.clients: list[RecordingClient] = []
        self._client_numbers = count()

    # --- processes and memories ---

    @property
    def monitor(self) -> MonitorCore:
        """The monitor's core."""
        core: MonitorCore = self._only("monitor")
        return core

    @property
    def manager(self) -> GlobalManagerCore:
        """The first manager's core."""
        core: GlobalManagerCore = self._only("global_manager")
        return core

    @property
    def dispatcher(self) -> DispatcherCore:
        """The first dispatcher's core."""
        core: DispatcherCore = self._only("dispatcher")
        return core

    @property
    def kvstores(self) -> list[KvstoreCore]:
        """The kvstores' cores, of all nodes."""
        return [self.cores[address] for address in self.of_role("kvstore")]

    @property
    def kvstore(self) -> KvstoreCore:
        """The first node's kvstore core."""
        core: KvstoreCore = self._only("kvstore")
        return core

    @property
    def tier(self) -> SimulatedHostMemory:
        """The first node's host tier."""
        return self.host_memories[self.kvstore.address]

    def engine_supervisor(self, name: str) -> SimulatedEngineSupervisor:
        """The supervisor of an instance's engine."""
        return self.engine_supervisors[self.instances[name].address]

    def _only(self, role: str) -> Any:
        return self.core(self.of_role(role)[0])

    # --- starting and ending ---

    def start_instance(self, name: str) -> InstanceCore:
        """Start an instance process as a new incarnation."""
        self.start("instance", name)
        return self.instances[name]

    def start_dispatcher(self, name: str) -> DispatcherCore:
        """Start a dispatcher process as a new incarnation."""
        self.start("dispatcher", name)
        return self.dispatchers[name]

    def kill_instance(self, name: str) -> None:
        """Kill the instance and its engine; no successor is started."""
        self.kill(self.instances[name].address)

    def kill_dispatcher(self, name: str) -> None:
        """Kill the dispatcher; no successor is started."""
        self.kill(self.dispatchers[name].address)

    def restart(self, role: str) -> None:
        """Kill the first process of a role and start its successor at once."""
        address = self.of_role(role)[0]
        self.kill(address)
        self.start(role, address.name)

    def drain(self, name: str, undo: bool = False) -> None:
        """Send the manager a drain, or its undoing, of an instance; the answer is not awaited."""
        tool = Address("client", f"tool-{self.world.delivered}-{undo}")
        self.world.add(tool, SilentPeer())
        self.world.connect(tool, self.manager.address)
        self.world.post(tool, self.manager.address, DrainRequest(name, undo))

    # --- clients ---

    def submit(
        self,
        tokens: list[int],
        max_tokens: int = 20,
        seed: int = 0,
        timeout_s: float | None = None,
        at: str = "dispatcher-0",
        **settings: Any,
    ) -> RecordingClient:
        """Connect a client to dispatcher `at` and submit its request."""
        submit = Submit(i32(tokens), max_tokens, SamplingParams(seed=seed), timeout_s=timeout_s, **settings)
        address = Address("client", f"client-{next(self._client_numbers)}")
        engine = self.spec.engine
        client = RecordingClient(address, submit, voice=engine.token_model, vocabulary=engine.ready.vocabulary)
        self.clients.append(client)
        self._come(client, at, submit)
        return client

    def reconnect(self, client: RecordingClient, to: str) -> None:
        """Resume the request at dispatcher `to` from a new address, as the SDK does after a loss."""
        old = client.address
        client.address = Address("client", f"{old.name}'")
        if client.door is not None:
            self.world.disconnect(old, client.door, "client left")
        self._come(client, to, replace(client.submit, key=client.request, received=i32(client.tokens)))

    def _come(self, client: RecordingClient, to: str, submit: Submit) -> None:
        client.dispatcher, client.door = to, self.dispatchers[to].address
        door = client.door
        self.world.add(client.address, client)
        self.world.connect(client.address, door)
        self.world.post(client.address, door, submit)

    def disconnect(self, client: RecordingClient) -> None:
        """End the client's connection."""
        self._say(client, Gone("client left"))

    def cancel(self, client: RecordingClient) -> None:
        """Cancel the client's request."""
        self._say(client, Abort())

    def _say(self, client: RecordingClient, message: Message) -> None:
        if client.door is not None:
            self.world.post(client.address, client.door, message)

    # --- running and checking ---

    def run_until_ready(self, for_s: float = 10.0) -> None:
        """Run until `is_ready`. Raises ContractBroken after `for_s` seconds."""
        if not self.world.run(lambda: self.is_ready, for_s=for_s):
            raise ContractBroken(f"not all instances are ready after {for_s} s")

    def run_until_done(self, for_s: float = 120.0) -> None:
        """Run until every client has its last token or a refusal. Raises ContractBroken after `for_s` seconds."""
        done = self.world.run(lambda: all(client.finish or client.rejected for client in self.clients), for_s=for_s)
        if not done:
            open_ones = [client.address.name for client in self.clients if not (client.finish or client.rejected)]
            raise ContractBroken(f"clients without an answer after {for_s} s: {', '.join(open_ones)}")

    def instance_running(self, client: RecordingClient) -> str:
        """The name of the instance that runs the client's request. Raises LookupError if there is none."""
        for name, core in self.instances.items():
            if any(sequence.place.key == client.request for sequence in core.sequences):
                return name
        raise LookupError(f"no instance runs {client.request}")

    def request_number(self, client: RecordingClient) -> int:
        """The dispatcher's number of the client's request."""
        return int(client.request.rpartition("-")[2], 16)

    def check_conservation(self) -> None:
        """Check that slots add up in every instance (invariant I8). Raises ContractBroken."""
        for core in self.instances.values():
            core.slot_table.check_integrity()
            report = core.report()
            held = report.owned_slots + report.reserved_slots + report.moving_slots + report.quarantined_slots
            if report.free_slots + held != report.capacity_slots:
                raise ContractBroken(f"{core.address}: {report.free_slots} slots free, {held} held: {report}")

    def all_free(self) -> bool:
        """Whether every slot of every instance is free or holds evictable prefix cache."""
        reports = [core.report() for core in self.instances.values()]
        return all(report.free_slots + report.cached_slots == report.capacity_slots for report in reports)

    def forward_reasons(self) -> None:
        """Send the monitor the reason of every decision so far, as live hosts do."""
        reasons = tuple(
            Reason(at_s, sender, to, type(message).__name__, self.codec.encode(message))
            for at_s, sender, to, message in self.world.sent
            if getattr(message, "why", None) is not None
        )
        self.monitor.receive(self.world.now_s, self.doors()[0], Reasons(reasons))
