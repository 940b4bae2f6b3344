"""Runs a global manager: its candidacy and its streams around `GlobalManagerCore`."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.effects import Address, Core, Effect, Message
from dunlin.membership.election import Election
from dunlin.messages.membership import Deposed, Elected
from dunlin.messages.plan import DRAIN, MANAGER_SERVICE, DrainReply, DrainRequest
from dunlin.policies.loongserve.inputs import GroupTimes
from dunlin.runtime.core_host import CoreHost
from dunlin.wire.envelopes import PLACEMENT, PLAN
from dunlin.wire.rpc.core_query import CoreQueries
from dunlin.wire.rpc.methods import Methods
from dunlin.wire.service.options import ServiceOptions
from dunlin.wire.service.service import ETCD, ServiceProcess
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.core import GlobalManagerCore

ELECTION_PREFIX = "/dunlin/election/global_manager"


@dataclass(frozen=True, slots=True)
class TermChanged:
    """Wakes the host when the election changed its mind."""


class TermGuard:
    """Stands before the core: whatever comes in, the core first hears how its term stands by the lease's own clock.

    A process that slept may find other messages in its queue before the news that it was deposed.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._changes: deque[Elected | Deposed] = deque()
        self._election: Election | None = None
        self._host: CoreHost | None = None

    def follow(self, election: Election, host: CoreHost) -> None:
        """Use this election from now on."""
        self._election, self._host = election, host

    def changed(self, change: Elected | Deposed) -> None:
        """For the election: a term began or ended."""
        self._changes.append(change)
        if self._host is not None:
            self._host.deliver(ETCD, TermChanged())

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        """See `dunlin.effects.Core`."""
        if self._election is not None:
            self._election.epoch()
        effects: list[Effect] = []
        while self._changes:
            effects += self._core.receive(now_s, ETCD, self._changes.popleft())
        effects += self._core.receive(now_s, sender, message)
        return effects


async def serve(options: ServiceOptions, config: GlobalManagerConfig, times: GroupTimes | None = None) -> int:
    """Serve until told to stop; returns the exit code.

    Raises:
        StartError: the port is taken, or no etcd.
    """
    service = ServiceProcess(options)
    guards: list[TermGuard] = []

    def make_core(address: Address) -> TermGuard:
        guards.append(TermGuard(GlobalManagerCore(address, config, times)))
        return guards[0]

    def make_handlers(host: CoreHost) -> list[Methods]:
        asking = CoreQueries(host)

        async def drain(request: DrainRequest, context: object) -> DrainReply:
            return await asking.ask(request, DrainReply)

        return [Methods({DRAIN: drain})]

    await service.start(
        make_core,
        accepts=[PLACEMENT],
        dials={"instance": PLAN},
        make_handlers=make_handlers,
        services=[MANAGER_SERVICE],
    )
    (guard,) = guards
    election = Election(service.etcd, ELECTION_PREFIX, options.name, guard.changed, ttl_s=options.lease_ttl_s)
    guard.follow(election, service.host)
    election.start()
    await service.wait_for_stop()
    await election.stop()
    return await service.stop()
