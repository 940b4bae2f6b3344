"""Ill-timed acts of operators, tools and clients: drains, sheds, duplicate calls, cancels by another tenant."""

from functools import partial

from dunlin.effects import Address, Message
from dunlin.messages.door import CancelById
from dunlin.messages.plan import DrainRequest, Evacuate, RemapLayers
from dunlin.messages.types import i32
from simulator.campaign.clients import CampaignClients
from simulator.campaign.faults.victims import VictimChooser
from simulator.campaign.plans import Fault
from simulator.cluster.scripted import SilentPeer
from simulator.cluster.simulated import SimulatedCluster

OVERTAKEN = 0.4
"""Share of the orders to hold other layers that a second one overtakes."""


class OperatorFaults:
    """Faults by operators, tools and clients."""

    def __init__(self, cluster: SimulatedCluster, victims: VictimChooser, clients: CampaignClients) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._victims = victims
        self._clients = clients
        self._tools = 0

    def do_cancel_foreign(self, fault: Fault) -> Address | None:
        """A tool cancels another tenant's request; that must have no effect."""
        client = self._victims.open_client(fault.pick)
        if client is None or client.door is None or not client.request:
            return None
        self._tool(client.door, CancelById(client.request, tenant="nobody"))
        return client.door

    def do_drain(self, fault: Fault) -> Address | None:
        """An operator drains an instance and undoes it later."""
        victim = self._victims.of_role("instance", fault.pick)
        if victim is not None:
            self._drain(victim, False)
            self._world.call_later(min(fault.lasts_s, 4.0), lambda: self._drain(victim, True))
        return victim

    def do_shed(self, fault: Fault) -> Address | None:
        """The leader orders an instance to migrate sequences to another."""
        source, target = self._victims.of_role("instance", fault.pick), self._victims.of_role("instance", fault.other)
        leader = self._cluster.etcd.leader
        core = self._cluster.core(leader) if leader is not None else None
        if source is None or target is None or source == target or core is None or core.term is None or leader is None:
            return None
        self._tools += 1
        shed = Evacuate(core.term.epoch, 1_000_000 + self._tools, target, int(1 + 80 * fault.amount))
        self._world.post(leader, source, shed)
        return source

    def do_remap(self, fault: Fault) -> Address | None:
        """The leader orders an instance to hold some of its layers only; twice in a row if `other` is small."""
        victim, leader = self._victims.of_role("instance", fault.pick), self._cluster.etcd.leader
        core = self._cluster.core(leader) if leader is not None else None
        if victim is None or core is None or core.term is None or leader is None:
            return None
        self._remap(leader, core.term.epoch, victim, fault.amount)
        if fault.other < OVERTAKEN:
            act = partial(self._remap, leader, core.term.epoch, victim, fault.other / OVERTAKEN)
            self._world.call_later(fault.other, act)
        return victim

    def _remap(self, leader: Address, epoch: int, instance: Address, amount: float) -> None:
        if instance not in self._cluster.engine_supervisors or not self._world.is_up(leader):
            return
        every = self._cluster.engine_supervisors[instance].layers.all
        chosen = int(amount * (1 << every))
        layers = i32(layer for layer in range(every) if chosen >> layer & 1)
        self._tools += 1
        self._world.post(leader, instance, RemapLayers(epoch, 1_000_000 + self._tools, layers))

    def do_duplicate(self, fault: Fault) -> Address | None:
        """Calls arrive twice: a client's Submit at another dispatcher, a tool's drain, etcd's membership."""
        self._cluster.etcd.compact_history()
        client = self._victims.open_client(fault.pick)
        if client is not None and client.submit.idempotency:
            twin = self._clients.duplicate(client)
            self._world.call_later(0.0, twin.connect)
        victim = self._victims.of_role("instance", fault.pick)
        if victim is not None:
            self._drain(victim, False)
            self._drain(victim, False)
            self._world.call_later(min(2.0, fault.lasts_s), lambda: self._drain(victim, True))
            self._world.call_later(min(2.0, fault.lasts_s) + 0.01, lambda: self._drain(victim, True))
        return victim

    def _drain(self, instance: Address, undo: bool) -> None:
        leader = self._cluster.etcd.leader
        if leader is not None and self._world.is_up(leader):
            self._tool(leader, DrainRequest(instance.name, undo))

    def _tool(self, to: Address, message: Message) -> None:
        self._tools += 1
        tool = Address("client", f"tool-{self._tools}")
        self._world.add(tool, SilentPeer())
        self._world.connect(tool, to)
        self._world.post(tool, to, message)
