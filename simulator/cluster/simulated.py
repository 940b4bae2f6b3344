"""A whole cluster in virtual time: the cores of all five services, whose processes start, die, stop and resume.

It does what a server does around its core and what a supervisor does around the processes: it opens the streams of
each role, dials broken ones again and starts engines. Its user decides which process fails and when. No server, wire,
socket or clock is imported here.
"""

from collections.abc import Callable
from typing import Any

from dunlin.cost.group_times import PlannerTimes
from dunlin.cost.step_fit import LearntSteps
from dunlin.effects import Address, Effect, Gone, Message
from dunlin.messages.engine import MapHost
from dunlin.messages.group import DIALING, DialPeer
from dunlin.messages.types import GroupRole
from services.dispatcher.core import DispatcherCore
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.core import GlobalManagerCore
from services.instance.core import InstanceCore
from services.instance.scheduling.step_times import PROFILES, SaveLearntSteps
from services.kvstore.core import KvstoreCore
from services.kvstore.transfer.transport_commands import TRANSPORT
from services.monitor.core import MonitorCore
from simulator.cluster.codec import InMemoryCodec
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor, tenant_lookup
from simulator.cluster.etcd import SimulatedEtcd
from simulator.cluster.kv_transport import SimulatedKvTransport
from simulator.cluster.network import Latencies
from simulator.cluster.planner_times import planner_times
from simulator.cluster.roster import Roster
from simulator.cluster.spec import ClusterSpec
from simulator.cluster.world import World
from simulator.engine.host_memory import SimulatedHostMemory
from simulator.engine.model import SimulatedEngineSettings
from simulator.engine.peer_network import PeerNetwork
from simulator.engine.timing import profile_of
from simulator.links.ports import make_fabric

REDIAL_S = 0.2
"""Seconds until a broken stream is dialled again."""


class SimulatedDialer:
    """Opens streams between instances on demand, as an instance's server does."""

    def __init__(self, world: World) -> None:
        self._world = world

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Open the stream that a core asks for (`DialPeer`), if the peer is up."""
        if isinstance(message, DialPeer) and self._world.is_up(message.peer):
            self._world.connect(sender, message.peer)
        return []


class SimulatedProfiles:
    """Stands for the stores of profiles: keeps what instances learn of their engines' steps, by the instance's name."""

    def __init__(self) -> None:
        self.learnt: dict[str, LearntSteps] = {}

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Keep what an instance has learnt."""
        if isinstance(message, SaveLearntSteps):
            self.learnt[sender.name] = message.learnt
        return []


class SimulatedCluster:
    """The processes of a `spec`, in one world.

    `cores` and `engine_supervisors` are by address, of all processes that run; `instances` and `dispatchers` by name,
    of those that should run. `profiles`: what instances have learnt. `host_memories`: each kvstore's host tier;
    `mapped_of`: the kvstore whose memory an instance's engine has mapped. `engine`: the settings of engines of
    instances that start from now on. `started_s` and `ended_s` are times of the world.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.engine = spec.engine
        self.roster = Roster(spec.nodes)
        self.world = World(Latencies(spec.network, self.roster.node_of))
        self.etcd = SimulatedEtcd(self.world)
        self.codec = InMemoryCodec()
        self.cores: dict[Address, Any] = {}
        self.started_s: dict[Address, float] = {}
        self.ended_s: dict[Address, float] = {}
        self.instances: dict[str, InstanceCore] = {}
        self.dispatchers: dict[str, DispatcherCore] = {}
        self.engine_supervisors: dict[Address, SimulatedEngineSupervisor] = {}
        self.host_memories: dict[Address, SimulatedHostMemory] = {}
        self.mapped_of: dict[Address, Address] = {}
        self.fabric = make_fabric(self.world.call_at, spec.node_links)
        self.peers = PeerNetwork(lambda engine, due: self.world.post(engine, engine, due, 0.0))
        self.profiles = SimulatedProfiles()
        self.world.add(DIALING, SimulatedDialer(self.world))
        self.world.add(PROFILES, self.profiles)
        self.world.add(
            TRANSPORT,
            SimulatedKvTransport(self.host_memories, self.world, self.fabric, self.roster.node_of, spec.network.link_s),
        )
        self._kvstores: dict[int, Address] = {}
        self._starts = 0
        self._times: PlannerTimes | None = None
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

    # --- processes ---

    def of_role(self, role: str) -> list[Address]:
        """The current processes of a role, by name."""
        return self.roster.of_role(role)

    def core(self, address: Address) -> Any:
        """The core at `address`, or None."""
        return self.cores.get(address)

    def doors(self) -> list[Address]:
        """The dispatchers' addresses, for clients."""
        return [core.address for core in self.dispatchers.values()]

    def has_engine(self, instance: Address) -> bool:
        """Whether the instance's engine process runs."""
        supervisor = self.engine_supervisors[instance]
        return supervisor.engine not in supervisor.ended

    @property
    def is_ready(self) -> bool:
        """Whether every instance follows an order, and each dispatcher can place requests on all that take new ones."""
        parts = [core.group_order.part for core in self.instances.values() if core.group_order is not None]
        begin = len(parts) - parts.count(GroupRole.DECODE)
        cores = self.dispatchers.values()
        return len(parts) == len(self.instances) and all(len(core.fleet.serving) == begin for core in cores)

    # --- starting and ending ---

    def start(self, role: str, name: str) -> None:
        """Start a process as a new incarnation; during an etcd outage later. Nothing if one of the name runs."""
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
        """Kill the process, with an instance also its engine; no successor is started."""
        self.etcd.died(address)
        if address.role == "instance":
            self.world.kill(self.cores[address].engine)
            self.engine_supervisors[address].engine.died(self.world.now_s)
            self.peers.ends.pop(self.cores[address].engine, None)
            del self.engine_supervisors[address]
        self.world.kill(address)
        del self.cores[address]
        self.ended_s[address] = self.world.now_s
        self._remove_from_roster(address)

    def replace_paused(self, address: Address) -> None:
        """Start a successor of a stopped process, which its supervisor takes for dead."""
        self._remove_from_roster(address)
        self.start(address.role, address.name)

    def pause(self, address: Address) -> None:
        """Stop the process (SIGSTOP)."""
        self.world.pause(address)
        self.etcd.paused(address)

    def _remove_from_roster(self, address: Address) -> None:
        if self.roster.is_current(address):
            self.roster.remove(address)
            self.instances.pop(address.name, None)
            self.dispatchers.pop(address.name, None)

    # --- streams ---

    def redial(self, one: Address, other: Address, unaware: Address | None = None) -> None:
        """Open a broken stream again if both ends run; `unaware`, which saw no break, receives `Gone` first."""
        if self.world.is_connected(one, other):
            return
        if unaware is not None:
            self.world.post(one if unaware == other else other, unaware, Gone("replaced by a newer connection"))
        if one in self.cores and other in self.cores:
            self.world.connect(one, other)

    def reset_stream(self, one: Address, other: Address, after_s: float = REDIAL_S) -> None:
        """Break a stream: both ends receive `Gone`, what is in flight is lost; it is dialled `after_s` later."""
        self.world.disconnect(one, other)
        self.world.call_later(after_s, lambda: self.redial(one, other))

    def _open_streams(self, address: Address) -> None:
        for other in self.roster.partners(address):
            self.world.connect(address, other)
        if address.role in ("instance", "kvstore"):
            self.world.connect(address, DIALING)
        if address.role == "instance" and not self.spec.has_profiles:
            self.world.connect(address, PROFILES)
        if address.role == "kvstore":
            self.world.connect(address, TRANSPORT)

    # --- cores ---

    def _core(self, address: Address, node: str) -> Any:
        spec = self.spec
        if address.role == "monitor":
            return MonitorCore(address, spec.monitor_config(), self.codec)
        if address.role == "global_manager":
            config = spec.manager_config()
            return GlobalManagerCore(address, config, self._planner_times(config))
        if address.role == "dispatcher":
            return DispatcherCore(address, spec.dispatcher_config())
        if address.role == "kvstore":
            self.host_memories[address], self._kvstores[address.incarnation] = SimulatedHostMemory(), address
            return KvstoreCore(address, spec.kvstore_config(node))
        timing = self._engine_of(address.name).timing
        known = profile_of(timing) if spec.has_profiles else self.profiles.learnt.get(address.name)
        return InstanceCore(address, spec.instance_config(node), known)

    def _engine_of(self, instance: str) -> SimulatedEngineSettings:
        return self.spec.engines.get(instance, self.engine)

    def _planner_times(self, config: GlobalManagerConfig) -> PlannerTimes | None:
        """Made once: it takes a third of a second, and managers come and go."""
        if config.groups.plans_by_time and self._times is None:
            self._times = planner_times(self.spec.engine.timing)
        return self._times

    def _make_engine_supervisor(self, core: InstanceCore) -> SimulatedEngineSupervisor:
        return SimulatedEngineSupervisor(
            self.world,
            core.address,
            self._engine_of(core.address.name),
            SimulatedHostMemory(),
            tenant_lookup(core),
            self._mapper(core.address),
            self.peers,
            self.roster.node_of[core.address],
            self.fabric,
        )

    def _mapper(self, instance: Address) -> Callable[[MapHost], SimulatedHostMemory | None]:
        """A function from a `MapHost` of this instance to the memory of the kvstore that it names."""

        def memory_of(wish: MapHost) -> SimulatedHostMemory | None:
            kvstore = self._kvstores.get(wish.incarnation)
            if kvstore is None:
                return None
            self.mapped_of[instance] = kvstore
            return self.host_memories[kvstore]

        return memory_of
