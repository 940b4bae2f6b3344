"""A whole cluster in virtual time: the real cores of all five services, joined by a fake link, over fake engines.

No server, wire, socket or clock is imported here. What a host does live (restart a dead process, forward reasons) the
test does by hand, so that each fault happens at an exact time.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from dunlin.effects import Address, Core, Effect, Gone, Message
from dunlin.messages.door import Submit, Withdraw
from dunlin.messages.fleet import Reason, Reasons
from dunlin.messages.group import Reach
from dunlin.messages.membership import Elected, Member, MembersReset
from dunlin.messages.plan import DrainRequest
from dunlin.messages.types import Part, Sampling, i32
from services.dispatcher.core import DispatcherCore
from services.global_manager.core import GlobalManagerCore
from services.instance.core import InstanceCore
from services.kvstore.carriage import TRANSPORT
from services.kvstore.core import KvstoreCore
from services.monitor.core import MonitorCore
from simulator.carrier import Carrier
from simulator.clients import Client
from simulator.codec import KeptMessages
from simulator.errors import ContractBroken
from simulator.network import Latencies, Links
from simulator.seat import EngineSeat
from simulator.spec import ClusterSpec, spec_of
from simulator.tier import HostTier
from simulator.world import World

ETCD = Address("etcd", "")
DIALING = Address("dialing", "")
NODE = "node-0"


def _tenants(core: InstanceCore) -> Callable[[int], str]:
    """Whose a sequence of the engine's is."""

    def tenant_of(number: int) -> str:
        sequence = core.sequences.get(number)
        return sequence.place.tenant if sequence is not None else ""

    return tenant_of


class Dialing:
    """Opens streams between instances on demand, as an instance's server does."""

    def __init__(self, world: World) -> None:
        self._world = world

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, Reach) and self._world.is_up(message.peer):
            self._world.join(sender, message.peer)
        return []


class _Act:
    """Something that happens once."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        self._act()
        return []


class Cluster:
    """Cores, engines and clients by a `spec`, or by the flat settings that `simulator.spec.spec_of` takes.

    `kvstore` and `tier` are those of the first node.
    """

    def __init__(self, spec: ClusterSpec | None = None, **settings: Any) -> None:
        self.spec = spec = spec or spec_of(**settings)
        self._node_of: dict[Address, str] = {}
        self.world = World(Latencies(spec.network, self._node_of))
        self.nodes = [f"node-{index}" for index in range(spec.nodes)]
        self.links = Links(spec.network, lambda delay_s, act: self.later(delay_s, lambda: act(self.world.now_s)))
        self.codec = KeptMessages()
        self.clients: list[Client] = []
        self._client_numbers = count()
        self.seats: dict[str, EngineSeat] = {}
        self.instances: dict[str, InstanceCore] = {}
        self.engine = spec.engine
        self.world.add(DIALING, Dialing(self.world))
        self._carried: dict[Address, HostTier] = {}
        self.world.add(TRANSPORT, Carrier(self._carried, self.world, self.links, self._node_of))
        self._members: dict[str, dict[str, Address]] = {}
        self._has_begun = False
        self._revision = 1
        self._acts = 0
        self.monitor = MonitorCore(self._new("monitor", "monitor-0"), self.spec.monitor_config(), self.codec)
        self.manager = GlobalManagerCore(self._new("global_manager", "manager-0"), self.spec.manager_config())
        self.tiers = {node: HostTier() for node in self.nodes}
        self.tier = self.tiers[NODE]
        self.kvstores: dict[str, KvstoreCore] = {}
        self.dispatchers: dict[str, DispatcherCore] = {}
        for core in (self.monitor, self.manager):
            self._enter(core.address, core)
        for node in self.nodes:
            self._start_kvstore(node)
        for index in range(spec.dispatchers):
            self.start_dispatcher(f"dispatcher-{index}")
        self.dispatcher = self.dispatchers["dispatcher-0"]
        for index in range(spec.instances):
            self.start_instance(f"instance-{index}")
        self._has_begun = True
        self._tell_members()
        self.world.post(ETCD, self.manager.address, Elected(self._revision))

    def start_instance(self, name: str) -> InstanceCore:
        """An instance process starts, as another incarnation if there was one before."""
        node = self.nodes[len(self.instances) % len(self.nodes)]
        core = InstanceCore(self._new("instance", name, node), self.spec.instance_config(node))
        self.instances[name] = core
        self._enter(core.address, core)
        self.world.join(core.address, DIALING)
        self.seats[name] = EngineSeat(self.world, core.address, self.engine, self.tiers[node], _tenants(core))
        return core

    def doors(self) -> list[Address]:
        """Where clients can go."""
        return [core.address for core in self.dispatchers.values()]

    @property
    def kvstore(self) -> KvstoreCore:
        """The first node's."""
        return self.kvstores[NODE]

    def _start_kvstore(self, node: str) -> None:
        config = self.spec.kvstore_config(node)
        core = self.kvstores[node] = KvstoreCore(self._new("kvstore", node.replace("node", "kvstore"), node), config)
        self._carried[core.address] = self.tiers[node]
        self._enter(core.address, core)
        self.world.join(core.address, DIALING)
        self.world.join(core.address, TRANSPORT)

    def start_manager(self) -> None:
        """Another manager process, which is elected at once."""
        self.manager = GlobalManagerCore(self._new("global_manager", "manager-0"), self.spec.manager_config())
        self._enter(self.manager.address, self.manager)
        self.world.post(ETCD, self.manager.address, Elected(self._revision))

    def kill_instance(self, name: str) -> None:
        """The process dies, and its engine with it; nobody starts another."""
        core = self.instances.pop(name)
        self.world.kill(core.engine)
        self._leave(core.address)

    def restart_kvstore(self) -> None:
        """The kvstore dies, with its memory; another one starts at once."""
        self._leave(self.kvstore.address)
        self._start_kvstore(NODE)

    def restart_monitor(self) -> None:
        """The monitor dies; another one starts at once."""
        self._leave(self.monitor.address)
        self.monitor = MonitorCore(self._new("monitor", "monitor-0"), self.spec.monitor_config(), self.codec)
        self._enter(self.monitor.address, self.monitor)

    def restart_manager(self) -> None:
        """The global manager dies; another one starts at once, and leads."""
        self._leave(self.manager.address)
        self.manager = GlobalManagerCore(self._new("global_manager", "manager-0"), self.spec.manager_config())
        self._enter(self.manager.address, self.manager)
        self.world.post(ETCD, self.manager.address, Elected(self._revision))

    def drain(self, name: str, undo: bool = False) -> None:
        """An operator asks the manager to empty an instance, or to use it again. Who answers what is not waited for."""
        tool = Address("client", f"tool-{self.world.delivered}-{undo}")
        self.world.add(tool, _Act(lambda: None))
        self.world.join(tool, self.manager.address)
        self.world.post(tool, self.manager.address, DrainRequest(name, undo))

    def later(self, delay_s: float, act: Callable[[], object]) -> None:
        """Call `act` when so much virtual time has passed."""
        self._acts += 1
        address = Address("test", f"act-{self._acts}")

        def once() -> None:
            self.world.kill(address)
            act()

        self.world.add(address, _Act(once))
        self.world.post(address, address, Gone(), delay_s)

    def start_dispatcher(self, name: str) -> DispatcherCore:
        """A dispatcher process starts, as another incarnation if there was one before."""
        core = self.dispatchers[name] = DispatcherCore(self._new("dispatcher", name), self.spec.dispatcher_config())
        self._enter(core.address, core)
        return core

    def kill_dispatcher(self, name: str) -> None:
        """The process dies; nobody starts another."""
        self._leave(self.dispatchers.pop(name).address)

    def submit(
        self,
        tokens: list[int],
        max_tokens: int = 20,
        seed: int = 0,
        timeout_s: float | None = None,
        at: str = "dispatcher-0",
        **settings: Any,
    ) -> Client:
        """A client comes to the door."""
        submit = Submit(i32(tokens), max_tokens, Sampling(seed=seed), timeout_s=timeout_s, **settings)
        address = Address("client", f"client-{next(self._client_numbers)}")
        voice, vocabulary = self.engine.voice, self.engine.ready.vocabulary
        client = Client(address, submit, voice=voice, vocabulary=vocabulary)
        self.clients.append(client)
        self._come(client, at, submit)
        return client

    def move(self, client: Client, to: str) -> None:
        """The client gives its dispatcher up and goes on at another, as the SDK does: from another address."""
        old = client.address
        client.address = Address("client", f"{old.name}'")
        if client.door is not None and self.world.is_up(client.door):
            self.world.part(old, client.door, "client left")
        self._come(client, to, replace(client.submit, key=client.request, received=i32(client.tokens)))

    def _come(self, client: Client, to: str, submit: Submit) -> None:
        client.dispatcher, client.door = to, self.dispatchers[to].address
        door = client.door
        self.world.add(client.address, client)
        self.world.join(client.address, door)
        self.world.post(client.address, door, submit)

    def leave(self, client: Client) -> None:
        """The client's connection ends."""
        self.world.post(client.address, self.dispatcher.address, Gone("client left"))

    def withdraw(self, client: Client) -> None:
        """The client cancels."""
        self.world.post(client.address, self.dispatcher.address, Withdraw())

    @property
    def is_ready(self) -> bool:
        """Whether every instance has its part, and all that begin requests may be given some."""
        parts = [core.followed.part for core in self.instances.values() if core.followed is not None]
        begin = len(parts) - parts.count(Part.DECODE)
        cores = self.dispatchers.values()
        return len(parts) == len(self.instances) and all(len(core.fleet.placeable) == begin for core in cores)

    def run_until_ready(self, for_s: float = 10.0) -> None:
        """Until `is_ready`."""
        if not self.world.run(lambda: self.is_ready, for_s=for_s):
            raise ContractBroken(f"not all instances are ready after {for_s} s")

    def run_until_done(self, for_s: float = 120.0) -> None:
        """Until every client has its last token or its refusal."""
        done = self.world.run(lambda: all(client.finish or client.rejected for client in self.clients), for_s=for_s)
        if not done:
            open_ones = [client.address.name for client in self.clients if not (client.finish or client.rejected)]
            raise ContractBroken(f"clients without an answer after {for_s} s: {', '.join(open_ones)}")

    def holder(self, client: Client) -> str:
        """The instance that runs the client's request now."""
        for name, core in self.instances.items():
            if any(sequence.place.key == client.request for sequence in core.sequences):
                return name
        raise LookupError(f"nobody holds {client.request}")

    def number(self, client: Client) -> int:
        """The dispatcher's number of the client's request."""
        return int(client.request.rpartition("-")[2], 16)

    def check_conservation(self) -> None:
        """I8, at this instant."""
        for core in self.instances.values():
            core.slots.check_integrity()
            report = core.report()
            held = report.owned_slots + report.reserved_slots + report.moving_slots + report.quarantined_slots
            if report.free_slots + held != report.capacity_slots:
                raise ContractBroken(f"{core.address}: {report.free_slots} slots free, {held} held: {report}")

    def all_free(self) -> bool:
        """Whether no slot is held anywhere, but by what is cached and can be given up."""
        reports = [core.report() for core in self.instances.values()]
        return all(report.free_slots + report.cached_slots == report.capacity_slots for report in reports)

    def forward_reasons(self) -> None:
        """Give the monitor every decision sent so far, as hosts do."""
        reasons = tuple(
            Reason(at_s, sender, to, type(message).__name__, self.codec.encode(message))
            for at_s, sender, to, message in self.world.sent
            if getattr(message, "why", None) is not None
        )
        self.monitor.receive(self.world.now_s, self.dispatcher.address, Reasons(reasons))

    def _new(self, role: str, name: str, node: str = NODE) -> Address:
        self._revision += 1
        address = Address(role, name, self._revision)
        self._node_of[address] = node
        self._members.setdefault(role, {})[name] = address
        return address

    def _leave(self, address: Address) -> None:
        self.world.kill(address)
        del self._members[address.role][address.name]

    def _enter(self, address: Address, core: Core) -> None:
        """A process comes up: those who listen learn of it, and it opens the streams that its role opens."""
        self.world.add(address, core)
        if self._has_begun:
            self._tell_members()
        for role in STREAMS[address.role]:
            for other in list(self._members.get(role, {}).values()):
                if self._are_joined(address, other) and self.world.is_up(other):
                    self.world.join(address, other)

    def _tell_members(self) -> None:
        """Whoever follows the membership gets the whole of it."""
        everybody = [one for members in self._members.values() for one in members.values()]
        reset = MembersReset(tuple(Member(one, "", self._node_of[one], pid=0) for one in everybody))
        for role in LISTENERS:
            for one in self._members.get(role, {}).values():
                self.world.post(ETCD, one, reset)

    def _are_joined(self, one: Address, other: Address) -> bool:
        """Whether those two have a stream; an instance has one with its own node's kvstore alone."""
        is_pool = {one.role, other.role} == {"instance", "kvstore"}
        return not is_pool or self._node_of[one] == self._node_of[other]


STREAMS = {
    "instance": ("monitor", "global_manager", "kvstore", "dispatcher"),
    "dispatcher": ("monitor", "instance"),
    "global_manager": ("monitor", "instance"),
    "kvstore": ("monitor", "instance"),
    "monitor": ("global_manager", "kvstore", "dispatcher", "instance"),
}
"""The roles with which each has a stream."""
LISTENERS = ("monitor", "kvstore", "dispatcher")
"""The roles whose cores follow the membership."""
