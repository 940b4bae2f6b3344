"""A whole cluster in virtual time: the real cores of all five services, that start, die, sleep and come back.

Does for each process what its server does around the core, and for all of them what their supervisor does: opens the
streams that a role opens, dials again what broke, starts engines. Which of them dies when, others decide. No server,
wire, socket or clock is imported here.
"""

from collections.abc import Callable
from typing import Any

from dunlin.effects import Address, Effect, Gone, Message
from dunlin.messages.engine import MapHost
from dunlin.messages.group import Reach
from dunlin.messages.types import Part
from services.dispatcher.core import DispatcherCore
from services.global_manager.core import GlobalManagerCore
from services.instance.core import InstanceCore
from services.kvstore.carriage import TRANSPORT
from services.kvstore.core import KvstoreCore
from services.monitor.core import MonitorCore
from simulator.cluster.codec import KeptMessages
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor, tenant_lookup
from simulator.cluster.etcd import SimulatedEtcd
from simulator.cluster.kv_transport import SimulatedKvTransport
from simulator.cluster.network import Latencies, NetworkLinks
from simulator.cluster.roster import Roster
from simulator.cluster.spec import ClusterSpec
from simulator.cluster.world import World
from simulator.engine.host_memory import SimulatedHostMemory

DIALING = Address("dialing", "")
REDIAL_S = 0.2
"""After a stream broke it is dialled again."""


class SimulatedDialer:
    """Opens streams between instances on demand, as an instance's server does."""

    def __init__(self, world: World) -> None:
        self._world = world

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """What a core asks of its host's dialler."""
        if isinstance(message, Reach) and self._world.is_up(message.peer):
            self._world.connect(sender, message.peer)
        return []


class SimulatedCluster:
    """Cores and engines by a `spec`.

    `cores` and `seats` are by address, of all that run; `instances` and `dispatchers` by name, of those that are meant
    to. `memories` are the kvstores' host tiers, `mapped_of` whose memory an instance's engine has mapped. `engine` is
    what engines will be that instances start with.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.engine = spec.engine
        self.roster = Roster(spec.nodes)
        self.world = World(Latencies(spec.network, self.roster.node_of))
        self.etcd = SimulatedEtcd(self.world)
        self.codec = KeptMessages()
        self.cores: dict[Address, Any] = {}
        self.started_s: dict[Address, float] = {}
        self.ended_s: dict[Address, float] = {}
        self.instances: dict[str, InstanceCore] = {}
        self.dispatchers: dict[str, DispatcherCore] = {}
        self.engine_supervisors: dict[Address, SimulatedEngineSupervisor] = {}
        self.host_memories: dict[Address, SimulatedHostMemory] = {}
        self.mapped_of: dict[Address, Address] = {}
        self.links = NetworkLinks(
            spec.network, lambda delay_s, act: self.world.call_later(delay_s, lambda: act(self.world.now_s))
        )
        self.world.add(DIALING, SimulatedDialer(self.world))
        self.world.add(TRANSPORT, SimulatedKvTransport(self.host_memories, self.world, self.links, self.roster.node_of))
        self._kvstores: dict[int, Address] = {}
        self._starts = 0
        for role, name, count in (
            ("monitor", "monitor", 1),
            ("global_manager", "manager", spec.managers),
            ("kvstore", "kvstore", spec.nodes),
            ("dispatcher", "dispatcher", spec.dispatchers),
            ("instance", "instance", spec.instances),
        ):
            for index in range(count):
                self.start(role, f"{name}-{index}")
        self.etcd.begin()

    # --- who is there ---

    def of_role(self, role: str) -> list[Address]:
        """The current processes of a role, by name."""
        return self.roster.of_role(role)

    def core(self, address: Address) -> Any:
        """The core at `address`, or None."""
        return self.cores.get(address)

    def doors(self) -> list[Address]:
        """Where clients can go."""
        return [core.address for core in self.dispatchers.values()]

    def has_engine(self, instance: Address) -> bool:
        """Whether the instance's engine process runs."""
        seat = self.engine_supervisors[instance]
        return seat.engine not in seat.ended

    @property
    def is_ready(self) -> bool:
        """Whether every instance has its part, and all that begin requests may be given some."""
        parts = [core.followed.part for core in self.instances.values() if core.followed is not None]
        begin = len(parts) - parts.count(Part.DECODE)
        cores = self.dispatchers.values()
        return len(parts) == len(self.instances) and all(len(core.fleet.placeable) == begin for core in cores)

    # --- starting and ending ---

    def start(self, role: str, name: str) -> None:
        """A process starts, as another incarnation if there was one before; as soon as etcd is there."""
        if self.etcd.is_down:
            return self.world.call_later(0.5, lambda: self.start(role, name))
        if self.roster.find(role, name) is not None:
            return None
        address = Address(role, name, self.etcd.next_revision())
        node = self.roster.add(address)
        self.started_s[address] = self.world.now_s
        core = self.cores[address] = self._core(address, node)
        self.world.add(address, core)
        if self.spec.skews_s:
            self.world.set_clock(address, self.spec.skews_s[self._starts % len(self.spec.skews_s)])
        self._starts += 1
        self.etcd.register(address, node)
        self._open_streams(address)
        if role == "dispatcher":
            self.dispatchers[name] = core
        if role == "instance":
            self.instances[name] = core
            self.engine_supervisors[address] = self._make_engine_supervisor(core)
        return None

    def kill(self, address: Address) -> None:
        """The process dies, an instance's engine with it; nobody starts another."""
        self.etcd.died(address)
        if address.role == "instance":
            self.world.kill(self.cores[address].engine)
            del self.engine_supervisors[address]
        self.world.kill(address)
        del self.cores[address]
        self.ended_s[address] = self.world.now_s
        self._remove_from_roster(address)

    def replace_paused(self, address: Address) -> None:
        """Its supervisor gives the process, which sleeps, up for dead and starts another of the same name."""
        self._remove_from_roster(address)
        self.start(address.role, address.name)

    def pause(self, address: Address) -> None:
        """The process stops (SIGSTOP)."""
        self.world.pause(address)
        self.etcd.paused(address)

    def _remove_from_roster(self, address: Address) -> None:
        if self.roster.is_current(address):
            self.roster.remove(address)
            self.instances.pop(address.name, None)
            self.dispatchers.pop(address.name, None)

    # --- streams ---

    def redial(self, one: Address, other: Address, unaware: Address | None = None) -> None:
        """Open a broken stream again, if both are still there; who did not notice that it broke hears that now."""
        if self.world.is_connected(one, other):
            return
        if unaware is not None:
            self.world.post(one if unaware == other else other, unaware, Gone("replaced by a newer connection"))
        if one in self.cores and other in self.cores:
            self.world.connect(one, other)

    def reset_stream(self, one: Address, other: Address, after_s: float = REDIAL_S) -> None:
        """Both ends learn that the stream broke, and what was under way is lost; it is dialled again."""
        self.world.disconnect(one, other)
        self.world.call_later(after_s, lambda: self.redial(one, other))

    def _open_streams(self, address: Address) -> None:
        for other in self.roster.partners(address):
            self.world.connect(address, other)
        if address.role in ("instance", "kvstore"):
            self.world.connect(address, DIALING)
        if address.role == "kvstore":
            self.world.connect(address, TRANSPORT)

    # --- cores ---

    def _core(self, address: Address, node: str) -> Any:
        spec = self.spec
        if address.role == "monitor":
            return MonitorCore(address, spec.monitor_config(), self.codec)
        if address.role == "global_manager":
            return GlobalManagerCore(address, spec.manager_config())
        if address.role == "dispatcher":
            return DispatcherCore(address, spec.dispatcher_config())
        if address.role == "kvstore":
            self.host_memories[address], self._kvstores[address.incarnation] = SimulatedHostMemory(), address
            return KvstoreCore(address, spec.kvstore_config(node))
        return InstanceCore(address, spec.instance_config(node))

    def _make_engine_supervisor(self, core: InstanceCore) -> SimulatedEngineSupervisor:
        return SimulatedEngineSupervisor(
            self.world,
            core.address,
            self.engine,
            SimulatedHostMemory(),
            tenant_lookup(core),
            self._mapper(core.address),
        )

    def _mapper(self, instance: Address) -> Callable[[MapHost], SimulatedHostMemory | None]:
        """Finds the memory that an instance's engine maps: that of the kvstore that it names."""

        def memory_of(wish: MapHost) -> SimulatedHostMemory | None:
            kvstore = self._kvstores.get(wish.incarnation)
            if kvstore is None:
                return None
            self.mapped_of[instance] = kvstore
            return self.host_memories[kvstore]

        return memory_of
