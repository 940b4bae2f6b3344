"""Several instances with modelled engines in virtual time, in one elastic group; dispatchers that check every token."""

from typing import Any

from dunlin.cost.links import EngineLinks
from dunlin.effects import Address
from dunlin.messages.group import DIALING
from dunlin.messages.plan import GroupOrder
from dunlin.messages.types import GroupKind, GroupRole
from services.instance.config import InstanceConfig
from services.instance.core import InstanceCore
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from simulator.cluster.simulated import SimulatedDialer
from simulator.cluster.world import World
from simulator.engine.model import engine_settings
from simulator.engine.peer_network import PeerNetwork
from simulator.links.ports import make_fabric
from tests.services.instance.bench import LATENCY_S, MANAGER, STEP_S, Attempt, Dispatcher, Silent, make_place
from tests.settings import configured

GROUP = 3


class GroupBench:
    """`instances` with `slots` token slots each; the first leads. Settings as `Bench`'s."""

    def __init__(
        self, instances: int = 3, *, slots: int = 64, engine: dict[str, Any] | None = None, **config: Any
    ) -> None:
        self.world = World(LATENCY_S)
        self.world.add(DIALING, SimulatedDialer(self.world))
        self.manager = Silent()
        self.world.add(MANAGER, self.manager)
        network = PeerNetwork(lambda engine, due: self.world.post(engine, engine, due, 0.0))
        fabric = make_fabric(self.world.call_at)
        links = EngineLinks(nvlink=1e9, look=1e9)
        settings = engine_settings(
            slots=slots, **{"step_s": STEP_S, "progress_s": 0.1, "links": links, **(engine or {})}
        )
        chosen = {"groups__chunk_tokens": 16, "groups__ahead_tokens": 8, **config}
        self.addresses = [Address("instance", f"i{index}", 5 + index) for index in range(instances)]
        self.cores: list[InstanceCore] = []
        self.supervisors: list[SimulatedEngineSupervisor] = []
        self.dispatchers: dict[Address, Dispatcher] = {}
        self.version = 0
        for address in self.addresses:
            core = InstanceCore(address, configured(InstanceConfig, role="instance", **chosen))
            self.cores.append(core)
            self.world.add(address, core)
            self.world.connect(address, DIALING)
            self.world.connect(MANAGER, address)
            dispatcher = self.dispatchers[address] = Dispatcher(Address("dispatcher", f"of {address.name}", 50))
            self.world.add(dispatcher.address, dispatcher)
            self.world.connect(dispatcher.address, address)
            self.supervisors.append(
                SimulatedEngineSupervisor(self.world, address, settings, network=network, node="n", fabric=fabric)
            )
        self.run(0.05)
        self.order(*self.addresses)
        self.run(0.1)

    @property
    def leader(self) -> Address:
        return self.addresses[0]

    def order(self, *members: Address, group: int = GROUP) -> None:
        """An order for each of the members."""
        self.version += 1
        for address in members:
            part = GroupRole.LEADER if address == members[0] else GroupRole.MEMBER
            order = GroupOrder(1, self.version, group, GroupKind.ELASTIC, part, members)
            self.world.post(MANAGER, address, order)

    def place(self, request: int = 1, tokens: int = 10, at: int = 0, **overrides: Any) -> Attempt:
        """A request of the group where it goes to the leader, else one of the instance alone."""
        address = self.addresses[at]
        place = make_place(request, tokens, **{"group": 0 if at else GROUP, **overrides})
        dispatcher = self.dispatchers[address]
        attempt = dispatcher.attempts[request, place.attempt] = Attempt(place)
        self.world.post(dispatcher.address, address, place)
        return attempt

    def has_engine(self, at: int) -> bool:
        """Whether the instance's engine process runs."""
        return self.supervisors[at].engine not in self.supervisors[at].ended

    def run(self, for_s: float) -> None:
        self.world.run_to(self.world.now_s + for_s)

    def check_empty(self) -> None:
        """Nothing of any request is left anywhere."""
        for core, supervisor in zip(self.cores, self.supervisors, strict=True):
            report = core.report()
            assert len(core.sequences) == 0
            assert report.free_slots + report.cached_slots == report.capacity_slots
            assert report.guest_slots == report.outstanding_steps == 0
            assert not supervisor.engine.open_sequences
