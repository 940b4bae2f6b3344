"""I11, I12: no tenant exceeds its quota, and nothing waits for what cannot come."""

from typing import Any

from dunlin.effects import Address, Gone
from dunlin.messages.dispatch import Adopted, Cancel
from dunlin.messages.door import Abort, Submit
from dunlin.messages.types import FinishReason, RequestClass
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import RequestState
from services.instance.sequence.states import SequenceState
from simulator.campaign.clients import CampaignClient, CampaignClients
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

STUCK_S = 5.0
"""Seconds after an instance stopped by which its requests were taken back; it is suspect after 3 s of silence."""
LATE_S = 4.0
"""Seconds for which a request may outlast its end without a fault; timers of slow clocks included."""
ORPHAN_S = 31.0
"""Seconds: instances keep the requests of a lost dispatcher for 30 s."""


class QuotaWatcher(InvariantWatcher):
    """I11: no tenant exceeds its quota, and a full queue admits no new request.

    Requests that a dispatcher adopted go on beyond the quota. They, and those that it asks about, are as many as the
    quota allows at most; all others keep it.
    """

    invariant = "I11"
    roles = ("dispatcher",)

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._full: int | None = None
        self._most_queued = cluster.spec.dispatcher_config().admission.max_queued
        self._adopted: set[tuple[Address, int]] = set()

    def before(self, event: Delivery) -> None:
        message = event.message
        self._full = None
        if isinstance(message, Adopted):
            self._adopted.add((event.to, message.request))
        if isinstance(message, Submit) and not message.key and not message.idempotency:
            journal = self.cluster.core(event.to).journal
            self._full = len(journal) if self._is_full(journal, message) else None

    def _is_full(self, journal: Journal, submit: Submit) -> bool:
        """Whether the queue has no room for it: a tenant with less than its part of the batch queue finds some."""
        queued = journal.queued_of(submit.request_class) + journal.deferred.count_of(submit.request_class)
        if queued < self._most_queued:
            return False
        if submit.request_class is not RequestClass.BATCH:
            return True
        waiting = [one for one in journal if one.state is RequestState.QUEUED and not one.is_deferred]
        new = [one for one in waiting if one.last_outcome is None and not one.is_risen]
        tenants = [one.submit.tenant for one in new if one.submit.request_class is RequestClass.BATCH]
        part = tenants.count(submit.tenant) * len({*tenants, submit.tenant})
        return part + queued - len(tenants) >= self._most_queued

    def after(self, event: Delivery) -> None:
        if self._full is not None:
            now, before = len(self.cluster.core(event.to).journal), self._full
            if now > before:
                raise self.fail(f"{event.to} lets {event.message} in, and its queue was full")

    def audit(self) -> None:
        for core in self.cluster.dispatchers.values():
            try:
                core.quotas.check_integrity()
            except AssertionError as error:
                raise self.fail(f"{core.address}: quotas: {error}") from error
            if self.cluster.etcd.quotas:
                first = self.cluster.etcd.quotas[0]  # all tenants have the same one
                self._count(core, first.running, first.tokens_per_minute)

    def _count(self, core: Any, most: int | None, per_minute: int | None) -> None:
        running: dict[str, int] = {}
        tokens: dict[str, int] = {}
        resumed: dict[str, int] = {}
        for request in core.journal:
            tenant = request.submit.tenant
            if request.state is RequestState.ADOPTING or (core.address, request.number) in self._adopted:
                resumed[tenant] = resumed.get(tenant, 0) + 1
                continue
            running[tenant] = running.get(tenant, 0) + 1
            tokens[tenant] = tokens.get(tenant, 0) + len(request.submit.tokens) + (request.max_tokens or 0)
        for tenant, count in resumed.items():
            if most is not None and count + running.get(tenant, 0) > 2 * most:
                raise self.fail(f"{core.address} runs {count} resumed requests of tenant {tenant!r}")
        for tenant, count in running.items():
            text = f"{core.address} runs {count} requests with {tokens[tenant]} tokens of tenant {tenant!r}"
            if most is not None and count > most:
                raise self.fail(text)
            # All tokens held now were taken since the start of the run.
            limit = None if per_minute is None else per_minute * (1 + self.cluster.world.now_s / 60)
            if limit is not None and tokens[tenant] > limit:
                raise self.fail(text)


class ProgressWatcher(InvariantWatcher):
    """I12: nothing waits for a process that will not answer, and no work is done for a client that left."""

    invariant = "I12"
    roles = ("dispatcher", "instance")

    def __init__(self, cluster: SimulatedCluster, clients: CampaignClients, faults: FaultInjector) -> None:
        super().__init__(cluster, clients, faults)
        self._left: Any = None
        self._heard: set[Address] = set()
        """Clients whose dispatcher has received their disconnect."""
        self._lost_s: dict[tuple[Address, Address], float] = {}
        """When an instance heard that a dispatcher is lost: one that slept hears it when it wakes."""

    def before(self, event: Delivery) -> None:
        self._left = None
        if event.to.role == "instance":
            if isinstance(event.message, Gone) and event.sender.role == "dispatcher":
                self._lost_s[event.to, event.sender] = event.at_s
            return
        is_withdrawn = isinstance(event.message, Abort) and event.message.finish is FinishReason.CANCELLED
        is_gone = isinstance(event.message, Gone) and event.sender.role == "client"
        if is_gone:
            self._heard.add(event.sender)
        if is_withdrawn or is_gone:
            self._left = self.cluster.core(event.to).journal.by_reader(event.sender)

    def after(self, event: Delivery) -> None:
        if isinstance(event.message, Cancel) and event.to.role == "instance":
            return self._check_cancelled(event, event.message)
        request, self._left = self._left, None
        if request is None or request.readers or request.submit.idempotency:
            return None
        if self.cluster.core(event.to).journal.get(request.number) is request:
            raise self.fail(f"{event.to} keeps {request} after {event}, which was of its last client")
        return None

    def audit(self) -> None:
        for client in self.clients.all:
            if client.disconnected and client.request and not client.submit.idempotency:
                self._is_forgotten(client)
            elif client.submit.timeout_s is not None and client.door is not None and not client.is_done:
                self._is_in_time(client, client.door, client.submit.timeout_s)
        for address, since_s in self.faults.processes.asleep_s.items():
            if address.role == "instance":
                self._is_given_up(address, since_s)

    def _check_cancelled(self, event: Delivery, cancel: Cancel) -> None:
        """Check that an attempt ends with the event that cancels it, and older ones of its request: no fault excuses
        one that goes on, and one that ends by itself a moment later is found, too.
        """
        core = self.cluster.core(event.to)
        for sequence in core.sequences if core is not None else ():
            is_meant = (sequence.dispatcher, sequence.place.request) == (event.sender, cancel.request)
            if is_meant and sequence.place.attempt <= cancel.attempt and sequence.state is not SequenceState.ENDING:
                raise self.fail(f"{event.to} goes on with {sequence.name}, which {event.sender} cancelled by {cancel}")

    def _is_in_time(self, client: CampaignClient, door: Address, timeout_s: float) -> None:
        late_s = self.cluster.world.now_s - client.connected_s - timeout_s
        if late_s < LATE_S:
            return
        if not self.faults.was_disturbed(door):
            raise self.fail(f"{client!r} is {late_s:.1f} s over its time")
        self.excuse("a request outlasts its deadline at a disturbed dispatcher")

    def _is_forgotten(self, client: CampaignClient) -> None:
        if self.cluster.world.now_s < self._forgotten_s(client):
            return
        for core in self.cluster.instances.values():
            for sequence in core.sequences:
                if sequence.place.key == client.request:
                    self._is_excused(client, core.address, sequence.dispatcher)

    def _is_excused(self, client: CampaignClient, instance: Address, dispatcher: Address) -> None:
        """Check that a fault hindered one of those that could have told the instance that the client left."""
        tellers = [instance, dispatcher, *([client.door] if client.door is not None else [])]
        if dispatcher not in self.cluster.cores and self._is_in_grace(instance, dispatcher):
            return self.excuse("work goes on for a client that left, while its dispatcher is lost and may come back")
        if not self.faults.was_disturbed(*tellers):
            raise self.fail(f"{instance} goes on for {client!r}, which left")
        return self.excuse("work goes on for a client that left, where a disturbed process was to tell so")

    def _is_in_grace(self, instance: Address, dispatcher: Address) -> bool:
        lost_s = max(self.cluster.ended_s[dispatcher], self._lost_s.get((instance, dispatcher), 0.0))
        return self.cluster.world.now_s < lost_s + ORPHAN_S

    def _forgotten_s(self, client: CampaignClient) -> float:
        """The time by which a disconnected client's request is gone.

        If its dispatcher died before it received the disconnect, the request is an orphan and kept for its grace.
        """
        if client.door is None:
            return client.ended_s + ORPHAN_S
        if client.address in self._heard or client.door in self.cluster.cores:
            return client.ended_s + LATE_S
        return max(client.ended_s, self.cluster.ended_s[client.door]) + ORPHAN_S

    def _is_given_up(self, instance: Address, since_s: float) -> None:
        """Check that no dispatcher waits for a stopped instance; disturbed judges are excused."""
        if not self.cluster.of_role("monitor"):
            return
        for core in self.cluster.dispatchers.values():
            judges = (core.address, *self.cluster.of_role("monitor"))
            watched_s = max(since_s, *(self.cluster.started_s[judge] for judge in judges))
            held = core.journal.ordered_requests_at(instance)
            if not held or self.cluster.world.now_s - watched_s <= STUCK_S:
                continue
            if not self.faults.was_disturbed(*judges):
                raise self.fail(f"{core.address} waits for {instance}, which sleeps: {held}")
            self.excuse("disturbed judges wait for an instance that sleeps")
