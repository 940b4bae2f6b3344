"""I1: a stream ends with all of its tokens, or with a refusal or an error that its request and the cluster allow."""

from collections import deque

from dunlin.effects import Address, Message
from dunlin.messages.door import RejectionCode, Submit, SubmitRejected
from dunlin.messages.types import FinishReason
from simulator.campaign.clients import MOST_TRIES, CampaignClient, CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.campaign.stream_rules import LEGAL_ERRORS, WAIT_TOO_LONG, is_late, is_whole
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

VIEWED_S = 5.0
"""Seconds after which views tell of an instance that came, or is drained."""
FASTEST_CLOCK = 1.2
"""Seconds that a skewed clock shows for one."""


class EndWatcher(InvariantWatcher):
    """I1: nothing is refused or ended but for a reason that can be seen outside the dispatcher.

    FULL: its queue is full, or the request's turn would come too late. QUOTA: the tenant's. TOO_LONG: the instances
    that served could not have held it together. DEADLINE: the time is over. An error: a fault struck, or a request is
    poison.
    """

    invariant = "I1"
    roles = ("dispatcher",)

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._submits: dict[Address, Submit] = {}
        self._begun_s: dict[int, float] = {}
        """When the first client of each request, by its number, reached a dispatcher."""
        self._seen: set[int] = set()
        self._max_queued = cluster.spec.dispatcher_config().admission.max_queued
        self._queued_before = 0
        self._remembered_s = cluster.spec.manager_config().long_requests.remembered_s
        self._rooms: deque[tuple[float, int]] = deque()
        """By time: the tokens that the instances of one node could hold together."""

    def before(self, event: Delivery) -> None:
        core = self.cluster.core(event.to)
        self._queued_before = core.journal.queued if core is not None else 0
        if isinstance(event.message, Submit):
            self._submits[event.sender] = event.message
            self._begun_s.setdefault(event.message.sampling.seed or 0, event.at_s)

    def sent(self, at_s: float, sender: Address, to: Address, message: Message) -> None:
        if not isinstance(message, SubmitRejected) or to not in self._submits:
            return
        submit = self._submits[to]
        longest = len(submit.tokens) + (submit.max_tokens or 1)
        if message.code is RejectionCode.FULL:
            self._is_full(sender, submit, message)
        elif message.code is RejectionCode.QUOTA:
            self._is_used_up(sender, submit, message)
        elif message.code is RejectionCode.TOO_LONG and self._is_too_long(longest, at_s):
            self.excuse("TOO_LONG for a request that the instances that served could not have held")
        elif message.code is not RejectionCode.UNAVAILABLE:
            raise self.fail(f"{sender} refuses {submit}: {message}")

    def audit(self) -> None:
        self._rooms.append((self.cluster.world.now_s, self._room()))
        while self._rooms[0][0] < self.cluster.world.now_s - self._remembered_s:
            self._rooms.popleft()
        for client in self.clients.all:
            if client.is_done and client.number not in self._seen:
                self._seen.add(client.number)
                if not self._may_end(client):
                    raise self.fail(f"{client!r} should not have ended so")

    def _is_full(self, dispatcher: Address, submit: Submit, message: SubmitRejected) -> None:
        # The event may have dispatched one after it refused this one.
        journal = self.cluster.core(dispatcher).journal
        queued = max(self._queued_before, journal.queued)
        # What may run somewhere already is asked about first, and refused as a new one afterwards.
        if queued >= self._max_queued * (2 if submit.key else 1):
            return
        if submit.may_be_held and queued + journal.adopting >= 2 * self._max_queued:
            return
        if submit.timeout_s is None and WAIT_TOO_LONG not in message.detail:
            raise self.fail(f"{dispatcher} refuses {submit}, and {queued} of {self._max_queued} wait: {message}")
        self.excuse("FULL for a request whose turn may come too late")

    def _is_used_up(self, dispatcher: Address, submit: Submit, message: SubmitRejected) -> None:
        quota = next((one for one in self.cluster.etcd.quotas if one.tenant == submit.tenant), None)
        if quota is None:
            raise self.fail(f"{dispatcher} refuses {submit}, whose tenant has no quota: {message}")
        journal = self.cluster.core(dispatcher).journal
        running = len([request for request in journal if request.submit.tenant == submit.tenant])
        if quota.running is not None and running >= quota.running:
            return
        if quota.tokens_per_minute is None:
            raise self.fail(f"{dispatcher} refuses {submit}, and {running} of {quota.running} run: {message}")
        self.excuse("QUOTA for a tenant with tokens per minute")

    def _may_end(self, client: CampaignClient) -> bool:
        if client.disconnected:
            return True
        if client.rejected is not None:
            # What refused it was checked when it was said; UNAVAILABLE is tried again.
            return client.rejected.code is not RejectionCode.UNAVAILABLE or client.attempts >= MOST_TRIES
        if client.finish is FinishReason.DEADLINE and not self._is_late(client):
            return False
        if client.finish is FinishReason.TOO_LONG:
            return self._may_be_too_long(client)
        if client.planned.poison:
            return client.finish in (FinishReason.ERROR, FinishReason.DEADLINE) and not client.tokens
        if client.finish is FinishReason.ERROR:
            return self._may_fail(client)
        return is_whole(client.finish, client.expected, client.tokens) or client.finish is FinishReason.DEADLINE

    def _is_late(self, client: CampaignClient) -> bool:
        waited_s = client.ended_s - self._begun_s.get(client.planned.number, client.ended_s)
        return is_late(client.submit.timeout_s, waited_s, FASTEST_CLOCK)

    def _is_too_long(self, longest: int, now_s: float) -> bool:
        """Whether instances that serve could not have held so many tokens for as long as it is remembered, as far as
        views tell.
        """
        since_s, until_s = now_s - self._remembered_s + VIEWED_S, now_s - VIEWED_S
        rooms = [room for at_s, room in self._rooms if since_s <= at_s <= until_s]
        if rooms and max(rooms) < longest:
            return True
        tellers = [one for role in ("monitor", "global_manager", "dispatcher") for one in self.cluster.of_role(role)]
        return self.faults.was_disturbed(*tellers)

    def _room(self) -> int:
        """The most that instances of one node hold together: none that drains, none without an engine."""
        by_node: dict[str, int] = {}
        for core in self.cluster.instances.values():
            report, node = core.report(), self.cluster.roster.node_of[core.address]
            if report.ready and not report.draining and not self.cluster.world.is_paused(core.address):
                by_node[node] = by_node.get(node, 0) + report.capacity_slots
        return max(by_node.values(), default=0)

    def _may_be_too_long(self, client: CampaignClient) -> bool:
        if not self._is_too_long(len(client.planned.tokens) + client.planned.max_tokens, client.ended_s):
            return False
        self.excuse("a request ends as too long, which the instances that served could not have held")
        return True

    def _may_fail(self, client: CampaignClient) -> bool:
        is_blamed = "poison" in client.detail and self.faults.engines.crashes >= 2
        has_cause = self.faults.last_s > 0 or any(one.planned.poison for one in self.clients.all)
        if not is_blamed and not (client.detail.startswith(LEGAL_ERRORS) and has_cause):
            return False
        self.excuse("a request ends with an error")
        return True
