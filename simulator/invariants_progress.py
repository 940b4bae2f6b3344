"""I11, I12: nobody has more than his share, and nothing waits for what will not come."""

from typing import Any

from dunlin.effects import Address, Gone
from dunlin.messages.door import Submit, Withdraw
from dunlin.messages.types import Finish
from simulator.cluster import Cluster
from simulator.faults import Faults
from simulator.process import Event
from simulator.readers import Reader, Readers
from simulator.watcher import Watcher

STUCK_S = 5.0
"""A stopped instance is found out after 3 s of silence; what it held must be elsewhere, or on the way, by then."""
LATE_S = 4.0
"""Longer than anything but a fault keeps a request after it should have ended; timers of slow clocks included."""
ORPHAN_S = 31.0
"""Instances keep for 30 s the requests of a dispatcher that is gone."""


class Limits(Watcher):
    """I11: no tenant has more at once than it may, and nobody new is let in where the queue is full."""

    invariant = "I11"

    def __init__(self, cluster: Cluster, readers: Readers, faults: Faults) -> None:
        super().__init__(cluster, readers, faults)
        self._full: int | None = None
        self._most_queued = cluster.spec.dispatcher_config().admission.max_queued

    def before(self, event: Event) -> None:
        message = event.message
        self._full = None
        if isinstance(message, Submit) and not message.key and not message.idempotency:
            journal = self.cluster.core(event.to).journal
            self._full = len(journal) if journal.queued >= self._most_queued else None

    def after(self, event: Event) -> None:
        if self._full is not None:
            now, before = len(self.cluster.core(event.to).journal), self._full
            if now > before:
                raise self.broken(f"{event.to} lets {event.message} in, and its queue was full")

    def audit(self) -> None:
        for core in self.cluster.dispatchers.values():
            try:
                core.quotas.check_integrity()
            except AssertionError as error:
                raise self.broken(f"{core.address}: quotas: {error}") from error
            if self.cluster.etcd.quotas:
                first = self.cluster.etcd.quotas[0]  # all tenants have the same
                self._count(core, first.running, first.tokens_per_minute)

    def _count(self, core: Any, most: int | None, per_minute: int | None) -> None:
        running: dict[str, int] = {}
        tokens: dict[str, int] = {}
        for request in core.journal:
            tenant = request.submit.tenant
            running[tenant] = running.get(tenant, 0) + 1
            tokens[tenant] = tokens.get(tenant, 0) + len(request.submit.tokens) + (request.max_tokens or 0)
        for tenant, count in running.items():
            text = f"{core.address} runs {count} requests with {tokens[tenant]} tokens of tenant {tenant!r}"
            if most is not None and count > most:
                raise self.broken(text)
            # What is held now was taken within as long as the run has lasted.
            limit = None if per_minute is None else per_minute * (1 + self.cluster.world.now_s / 60)
            if limit is not None and tokens[tenant] > limit:
                raise self.broken(text)


class Progress(Watcher):
    """I12: nothing waits for a process that will not answer, and nobody works for a client that left."""

    invariant = "I12"

    def __init__(self, cluster: Cluster, readers: Readers, faults: Faults) -> None:
        super().__init__(cluster, readers, faults)
        self._left: Any = None
        self._heard: set[Address] = set()
        """Clients of whose leaving their door has heard."""

    def before(self, event: Event) -> None:
        self._left = None
        if event.to.role != "dispatcher":
            return
        is_withdrawn = isinstance(event.message, Withdraw) and event.message.finish is Finish.CANCELLED
        is_gone = isinstance(event.message, Gone) and event.sender.role == "client"
        if is_gone:
            self._heard.add(event.sender)
        if is_withdrawn or is_gone:
            self._left = self.cluster.core(event.to).journal.of_client(event.sender)

    def after(self, event: Event) -> None:
        request, self._left = self._left, None
        if request is None or request.readers or request.submit.idempotency:
            return
        if self.cluster.core(event.to).journal.get(request.number) is request:
            raise self.broken(f"{event.to} keeps {request} after {event}, which was of its last client")

    def audit(self) -> None:
        for reader in self.readers.all:
            if reader.left and reader.request and not reader.submit.idempotency:
                self._is_forgotten(reader)
            elif reader.submit.timeout_s is not None and reader.door is not None and not reader.is_done:
                if self.faults.was_touched(reader.door):
                    continue
                late_s = self.cluster.world.now_s - reader.came_s - reader.submit.timeout_s
                if late_s >= LATE_S:
                    raise self.broken(f"{reader!r} is {late_s:.1f} s over its time")
        for address, since_s in self.faults.processes.asleep_s.items():
            if address.role == "instance":
                self._is_given_up(address, since_s)

    def _is_forgotten(self, reader: Reader) -> None:
        if self.cluster.world.now_s < self._forgotten_s(reader) or self.faults.was_touched(*self.cluster.cores):
            return
        for core in self.cluster.instances.values():
            for sequence in core.sequences:
                is_his = sequence.place.key == reader.request
                if is_his:
                    raise self.broken(f"{core.address} goes on for {reader!r}, who left")

    def _forgotten_s(self, reader: Reader) -> float:
        """By when. That it left, nobody knows whose door died before it heard so: its request is an orphan then."""
        if reader.door is None:
            return reader.ended_s + ORPHAN_S
        if reader.address in self._heard or reader.door in self.cluster.cores:
            return reader.ended_s + LATE_S
        return max(reader.ended_s, self.cluster.ended_s[reader.door]) + ORPHAN_S

    def _is_given_up(self, instance: Address, since_s: float) -> None:
        """Nobody waits for it who, like the monitor, was well all the time since it sleeps."""
        if not self.cluster.of_role("monitor"):
            return
        for core in self.cluster.dispatchers.values():
            judges = (core.address, *self.cluster.of_role("monitor"))
            watched_s = max(since_s, *(self.cluster.started_s[judge] for judge in judges))
            if self.cluster.world.now_s - watched_s > STUCK_S and not self.faults.was_touched(*judges):
                held = core.journal.held_by(instance)
                if held:
                    raise self.broken(f"{core.address} waits for {instance}, which sleeps: {held}")
