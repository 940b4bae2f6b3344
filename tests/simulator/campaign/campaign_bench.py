"""A small ready cluster with campaign clients and faults, and short forms of requests, faults and deliveries."""

from random import Random
from types import SimpleNamespace
from typing import Any

from dunlin.effects import Address, Message
from simulator.campaign.clients import CampaignClient, CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.plans import Fault, PlannedRequest
from simulator.cluster.network import Jitter
from simulator.cluster.process import Delivery
from simulator.cluster.scripted import ScriptedCluster


class Campaign:
    """What a trial builds, without a plan. `settings` are those of a `ScriptedCluster`."""

    def __init__(self, is_poisoned: bool = False, **settings: Any) -> None:
        self.cluster = ScriptedCluster(**settings)
        self.cluster.run_until_ready()
        self.world = self.cluster.world
        self.jitter = Jitter(0.0, Random(0))
        self.clients = CampaignClients(self.cluster)
        self.faults = FaultInjector(self.cluster, self.clients, self.jitter, is_poisoned)

    def run(self, for_s: float) -> None:
        """Move the world's time on."""
        self.world.run(for_s=for_s)

    def client(self, **changes: Any) -> CampaignClient:
        """A connected client of a new request, at its dispatcher when some tokens have come."""
        for _, act in self.clients.arrivals(planned(**changes))[:1]:
            act()
        client = self.clients.all[-1]
        self.world.run(lambda: bool(client.tokens), for_s=10.0)
        return client

    def address(self, role: str, index: int = 0) -> Address:
        """A current process of a role."""
        return self.cluster.of_role(role)[index]

    def plant(self, address: Address, **state: Any) -> None:
        """Put an object with this state where the core of `address` was."""
        self.cluster.cores[address] = SimpleNamespace(address=address, **state)

    def event(self, sender: Address, to: Address, message: Message) -> Delivery:
        """A delivery of `message` now."""
        return Delivery(self.world.now_s, 0, to, sender, message)


def planned(**changes: Any) -> PlannedRequest:
    """A request of three tokens for 60 more, now, at the first dispatcher."""
    values: dict[str, Any] = {"number": 0, "at_s": 0.0, "tokens": (1, 2, 3), "max_tokens": 60, "tenant": "", "door": 0}
    return PlannedRequest(**{**values, **changes})


def fault(kind: str = "", **changes: Any) -> Fault:
    """A fault of one second at the first victim, of the least strength."""
    values: dict[str, Any] = {"number": 0, "at_s": 0.0, "pick": 0.0, "other": 0.0, "lasts_s": 1.0, "amount": 0.0}
    return Fault(kind=kind, **{**values, **changes})
