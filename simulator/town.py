"""A cluster under trouble: the real cores of all five services, several of each, that start, die, sleep and come back.

Does for each process what its server does around the core: opens the streams that its role opens, dials again what
broke, starts engines. Decides nothing else.
"""

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from dunlin.effects import Address, Gone, Message
from dunlin.messages.engine import MapHost
from dunlin.policies.presets import PRESETS
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.core import DispatcherCore
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.core import GlobalManagerCore
from services.instance.config import InstanceConfig
from services.instance.core import InstanceCore
from services.kvstore.carriage import TRANSPORT
from services.kvstore.config import KvstoreConfig
from services.kvstore.core import KvstoreCore
from services.monitor.config import MonitorConfig
from services.monitor.core import MonitorCore
from simulator.cluster import DIALING, STREAMS, Dialing
from simulator.codec import KeptMessages
from simulator.engine import settings_of
from simulator.etcd_model import EtcdModel
from simulator.network import Jitter
from simulator.parcels import PatientCarrier
from simulator.plans import Shape
from simulator.seat import EngineSeat
from simulator.tier import HostTier
from simulator.world import World

REDIAL_S = 0.2
"""After a stream broke it is dialled again."""


class Town:
    """Processes by address. `current` has the newest of each (role, name) that is meant to be there."""

    def __init__(self, shape: Shape, jitter: Random) -> None:
        self.world = World(shape.latency_s)
        self.world.keep_sent = False
        self.world.extra_s = self.jitter = Jitter(shape.latency_s, jitter)
        self.etcd = EtcdModel(self.world, self.later)
        self.shape = shape
        self.current: dict[tuple[str, str], Address] = {}
        self.started_s: dict[Address, float] = {}
        self.cores: dict[Address, Any] = {}
        self.seats: dict[Address, EngineSeat] = {}
        self.memories: dict[Address, HostTier] = {}
        self.mapped_of: dict[Address, Address] = {}  # whose memory each instance's engine has mapped
        self.on_dispatcher: Callable[[Address], object] = lambda address: None
        self._mapped: dict[Address, HostTier] = {}
        self._node_of: dict[Address, str] = {}
        self._numbers = count()
        self._starts = count()
        self.world.add(DIALING, Dialing(self.world))
        self.world.add(TRANSPORT, PatientCarrier(self.memories))
        self._begin()

    def _begin(self) -> None:
        shape = self.shape
        for name in ("monitor-0",):
            self.start("monitor", name)
        for index in range(shape.managers):
            self.start("global_manager", f"manager-{index}")
        for index in range(shape.nodes):
            self.start("kvstore", f"kvstore-{index}")
        for index in range(shape.dispatchers):
            self.start("dispatcher", f"dispatcher-{index}")
        for index in range(shape.instances):
            self.start("instance", f"instance-{index}")

    # --- who is there ---

    def of_role(self, role: str) -> list[Address]:
        """The current processes of a role, by name."""
        return [self.current[key] for key in sorted(self.current) if key[0] == role]

    def core(self, address: Address) -> Any:
        """The core at `address`, or None."""
        return self.cores.get(address)

    def instances(self) -> list[InstanceCore]:
        """The cores of the current instances."""
        return [self.cores[address] for address in self.of_role("instance")]

    def dispatchers(self) -> list[DispatcherCore]:
        """The cores of the current dispatchers."""
        return [self.cores[address] for address in self.of_role("dispatcher")]

    def node(self, address: Address) -> str:
        """Where it runs."""
        return self._node_of[address]

    def has_engine(self, instance: Address) -> bool:
        """Whether the instance's engine process runs."""
        seat = self.seats[instance]
        return seat.engine not in seat.ended

    # --- starting and ending ---

    def start(self, role: str, name: str) -> None:
        """A process starts, as another incarnation if there was one before; as soon as etcd is there."""
        if self.etcd.is_down:
            return self.later(0.5, lambda: self.start(role, name))
        if (role, name) in self.current:
            return
        number = int(name.rpartition("-")[2]) if role in ("instance", "kvstore") else 0
        node = f"node-{number % self.shape.nodes}"
        address = Address(role, name, self.etcd.next_revision())
        self._node_of[address], self.current[role, name] = node, address
        self.started_s[address] = self.world.now_s
        skew_s = self.shape.skews[next(self._starts) % len(self.shape.skews)]
        core = self.cores[address] = self._core(address, node)
        self.world.add(address, core)
        self.world.skew(address, skew_s)
        self.etcd.register(address, node)
        self._open_streams(address)
        if role == "dispatcher":
            self.on_dispatcher(address)
        if role == "instance":
            self.seats[address] = self._seat(address, core)

    def kill(self, address: Address) -> None:
        """The process dies, an instance's engine with it; nobody starts another."""
        self.etcd.died(address)
        if address.role == "instance":
            self.world.kill(self.cores[address].engine)
            del self.seats[address]
        self.world.kill(address)
        del self.cores[address]
        if self.current.get((address.role, address.name)) == address:
            del self.current[address.role, address.name]

    def outlive(self, address: Address) -> None:
        """Its supervisor gives the process, which sleeps, up for dead and starts another of the same name."""
        del self.current[address.role, address.name]
        self.start(address.role, address.name)

    def pause(self, address: Address) -> None:
        """The process stops (SIGSTOP)."""
        self.world.pause(address)
        self.etcd.sleeps(address)

    def later(self, delay_s: float, act: Callable[[], object]) -> None:
        """Call `act` when so much virtual time has passed."""
        address = Address("test", f"act-{next(self._numbers)}")
        self.world.add(address, _Act(self.world, address, act))
        self.world.post(address, address, Gone(), delay_s)

    # --- streams ---

    def streams(self) -> list[tuple[Address, Address]]:
        """The streams between current processes that there should be, open or not."""
        there = [self.current[key] for key in sorted(self.current)]
        return [(one, other) for one in there for other in there if one < other and self._are_meant(one, other)]

    def redial(self, one: Address, other: Address, unaware: Address | None = None) -> None:
        """Open a broken stream again, if both are still there; who did not notice that it broke hears that now."""
        if self.world.is_joined(one, other):
            return
        if unaware is not None:
            self.world.post(one if unaware == other else other, unaware, Gone("replaced by a newer connection"))
        if one in self.cores and other in self.cores:
            self.world.join(one, other)

    def reset_stream(self, one: Address, other: Address, after_s: float = REDIAL_S) -> None:
        """Both ends learn that the stream broke, and what was under way is lost; it is dialled again."""
        self.world.part(one, other)
        self.later(after_s, lambda: self.redial(one, other))

    def heard(self, sender: Address, to: Address, message: Message) -> None:
        """Before a message is delivered: an engine maps the memory of the kvstore that it names."""
        if isinstance(message, MapHost):
            for kvstore, memory in self.memories.items():
                if kvstore.incarnation == message.incarnation and sender in self.seats:
                    self._mapped[sender].contents = memory.contents
                    self.mapped_of[sender] = kvstore

    def _open_streams(self, address: Address) -> None:
        for other in [self.current[key] for key in sorted(self.current)]:
            if other != address and self._are_meant(address, other):
                self.world.join(address, other)
        if address.role in ("instance", "kvstore"):
            self.world.join(address, DIALING)
        if address.role == "kvstore":
            self.world.join(address, TRANSPORT)

    def _are_meant(self, one: Address, other: Address) -> bool:
        """Whether their roles have a stream; an instance has one with its own node's kvstore alone."""
        is_local = self._node_of[one] == self._node_of[other]
        is_pool = {one.role, other.role} == {"instance", "kvstore"}
        return other.role in STREAMS[one.role] and (is_local or not is_pool)

    # --- cores ---

    def _core(self, address: Address, node: str) -> Any:
        shape, preset = self.shape, PRESETS[self.shape.preset]
        if address.role == "monitor":
            return MonitorCore(address, MonitorConfig(), KeptMessages())
        if address.role == "global_manager":
            return GlobalManagerCore(address, GlobalManagerConfig(preset.group, preset.rebalance))
        if address.role == "dispatcher":
            return DispatcherCore(address, DispatcherConfig(preset.dispatch, max_queued=shape.max_queued))
        if address.role == "kvstore":
            self.memories[address] = HostTier()
            return KvstoreCore(
                address, KvstoreConfig("/tier", shape.tier_bytes, node, replicate=shape.replicate and shape.nodes > 1)
            )
        return InstanceCore(
            address,
            InstanceConfig(
                node=node,
                preset=shape.preset,
                max_running=shape.max_running,
                prefix_reuse=shape.prefix_reuse,
                checkpoint_tokens=16,
                checkpoint_share=shape.checkpoint_share,
                budget_tokens=shape.budget_tokens,
                run_ahead_tokens=shape.run_ahead_tokens,
            ),
        )

    def _seat(self, address: Address, core: InstanceCore) -> EngineSeat:
        shape = self.shape
        self._mapped[address] = HostTier()
        settings = settings_of(
            progress_s=0.25,
            slots=shape.slots,
            step_s=shape.step_s,
            move_s=shape.move_s,
            restart_s=shape.restart_s,
        )
        return EngineSeat(self.world, address, settings, self._mapped[address], lambda number: _tenant(core, number))


def _tenant(core: InstanceCore, number: int) -> str:
    sequence = core.sequences.get(number)
    return sequence.place.tenant if sequence is not None else ""


class _Act:
    """Something that happens once."""

    def __init__(self, world: World, address: Address, act: Callable[[], object]) -> None:
        self._world = world
        self._address = address
        self._act = act

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Any]:
        self._world.kill(self._address)
        self._act()
        return []
