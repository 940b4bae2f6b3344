"""The invariants, as watchers of a cluster: each looks at what an event touched, and at everything from time to time.

They read what the cores show to anybody (reports, tables, integrity checks) and what goes over the streams, and keep
their own account of it. Numbers are those of docs/campaigns.md. I1 is the readers' own; I10 needs batch jobs, which do
not exist yet.
"""

from collections.abc import Callable
from typing import Any

from dunlin.effects import Address, Gone
from dunlin.messages.dispatch import Accepted, Poisoned, Refused, Returned, Tokens
from dunlin.messages.door import Submit, Withdraw
from dunlin.messages.engine import EngineExited, Move, Step, StepDone, StopEngine
from dunlin.messages.fleet import FleetView
from dunlin.messages.membership import Deposed
from dunlin.messages.plan import Drain, Order, Shed, Undrain
from dunlin.messages.types import Finish, GroupKind, MoveKind
from simulator.cluster import Cluster
from simulator.faults import Faults
from simulator.invariants_tier import Names, Regions
from simulator.process import Event
from simulator.readers import Reader, Readers
from simulator.watcher import Watcher

FULL_EVERY = 64
"""Every so many events at one core, all of it is checked; its sums at each."""
STUCK_S = 5.0
"""A stopped instance is found out after 3 s of silence; what it held must be elsewhere, or on the way, by then."""
LATE_S = 4.0
"""Longer than anything but a fault keeps a request after it should have ended; timers of slow clocks included."""


ORPHAN_S = 31.0
"""Instances keep for 30 s the requests of a dispatcher that is gone."""
ATTEMPTS = (Tokens, Accepted, Refused, Returned, Poisoned)


class Fencing(Watcher):
    """I2: an old attempt, an old incarnation, an old epoch or plan version change nothing."""

    invariant = "I2"

    def __init__(self, cluster: Cluster, readers: Readers, faults: Faults) -> None:
        super().__init__(cluster, readers, faults)
        self._stale: list[tuple[Any, tuple[object, ...]]] = []
        self._versions: dict[Address, tuple[int, int]] = {}
        self._views: dict[Address, tuple[Address, int]] = {}

    def before(self, event: Event) -> None:
        self._stale = []
        if event.to.role != "dispatcher" or not isinstance(event.message, ATTEMPTS):
            return
        journal = self.cluster.core(event.to).journal
        for number, attempt in _named(event.message):
            request = journal.get(number)
            is_held = request is not None and request.instance is not None
            if is_held and (request.instance != event.sender or request.attempt != attempt):
                self._stale.append((request, _said(request)))

    def after(self, event: Event) -> None:
        for request, before in self._stale:
            now = _said(request)
            if now != before:
                raise self.broken(f"{event} is of an old attempt and made {before} of {now}")
        role, core = event.to.role, self.cluster.core(event.to)
        if role == "instance" and isinstance(event.message, Order) and core is not None:
            before, now = self._versions.get(event.to, (0, 0)), core.plan
            if now < before:
                raise self.broken(f"{event.to} went from plan {before} back to {now} by {event.message}")
            self._versions[event.to] = now
        if role == "dispatcher" and isinstance(event.message, FleetView) and core is not None:
            self._view_taken(event, core.fleet.source)

    def audit(self) -> None:
        """A monitor counts one process of each name."""
        for address in self.cluster.of_role("monitor"):
            present = self.cluster.core(address).registry.present()
            names = {(one.role, one.name) for one in present}
            if len(names) < len(present):
                raise self.broken(f"{address} counts a process and its successor: {present}")

    def _view_taken(self, event: Event, source: tuple[Address | None, int]) -> None:
        monitor, version = source
        if monitor is None:
            return
        before = self._views.get(event.to)
        self._views[event.to] = (monitor, version)
        if before is None or not self.cluster.world.is_joined(event.to, before[0]):
            return
        is_newer = (monitor.incarnation, version) >= (before[0].incarnation, before[1])
        if not is_newer:
            raise self.broken(f"{event.to} went from view {before} back to {monitor} version {version}")


def _named(message: Any) -> list[tuple[int, int]]:
    """(request, attempt) of each thing that the message is about."""
    if isinstance(message, Tokens):
        return list(zip(message.request, message.attempt, strict=True))
    return [(message.request, message.attempt)]


def _said(request: Any) -> tuple[object, ...]:
    return (request.state, request.attempt, request.instance, len(request.tokens))


class Leadership(Watcher):
    """I3: one leader per epoch. I9: who lost its term, or slept through it, orders nothing once it has heard so."""

    invariant = "I3"

    def __init__(self, cluster: Cluster, readers: Readers, faults: Faults) -> None:
        super().__init__(cluster, readers, faults)
        self._leads: dict[Address, int] = {}
        self._over_s: dict[Address, tuple[int, float]] = {}
        self._orders: dict[tuple[int, int, Address], Order] = {}

    def after(self, event: Event) -> None:
        if event.to.role == "global_manager":
            self._manager(event)
        elif event.to.role == "instance" and isinstance(event.message, Order | Shed | Drain | Undrain):
            self._ordered(event, event.message)

    def _manager(self, event: Event) -> None:
        core = self.cluster.core(event.to)
        term = core.term if core is not None else None
        if term is not None and isinstance(event.message, Deposed) and event.message.epoch == term.epoch:
            raise self.broken(f"{event.to} heard that epoch {term.epoch} is over, and leads on")
        if term is not None:
            elected = self.cluster.etcd.terms.get(term.epoch)
            if elected != event.to:
                raise self.broken(f"{event.to} leads epoch {term.epoch}, which is {elected}'s")
            self._leads[event.to] = term.epoch
        elif event.to in self._leads:
            self._over_s[event.to] = (self._leads.pop(event.to), event.at_s)

    def _ordered(self, event: Event, message: Order | Shed | Drain | Undrain) -> None:
        epoch, over_s = self._over_s.get(event.sender, (0, 0.0))
        lag_s = 2 * self.cluster.spec.network.link_s + self.faults.lag_s.get(event.to, 0.0)
        is_late = message.epoch <= epoch and event.at_s > over_s + lag_s + 10.0
        if is_late:
            raise self.broken(f"{event.sender} lost epoch {epoch} at {over_s} and says {message}", "I9")
        if isinstance(message, Order):
            key = (message.epoch, message.plan_version, event.to)
            first = self._orders.setdefault(key, message)
            if _plan_of(first) != _plan_of(message):
                raise self.broken(f"{key} means {first} and {message}", "I4")


def _plan_of(order: Order) -> tuple[object, ...]:
    return (order.group, order.kind, order.part, order.members, list(order.layers))


class Groups(Watcher):
    """I4: members agree on their group. I5: its members hold every layer between them."""

    invariant = "I4"

    def audit(self) -> None:
        followed = {
            core.address: core.followed for core in self.cluster.instances.values() if core.followed is not None
        }
        leads: dict[tuple[int, int], tuple[Address, ...]] = {}
        for address, order in followed.items():
            if address not in order.members:
                raise self.broken(f"{address} is no member of its own {order}")
            key = (order.epoch, order.group)
            members = leads.setdefault(key, order.members)
            if members != order.members:
                raise self.broken(f"group {key} is {members} and {order.members}")
            self._agree(address, order, followed)
            self._cover(order, followed)
        for core in self.cluster.instances.values():
            is_planned = core.followed is not None or not len(core.sequences)
            if not is_planned:
                raise self.broken(f"{core.address} runs {core.sequences!r} and follows no order")

    def _agree(self, address: Address, order: Order, followed: dict[Address, Order]) -> None:
        for member in order.members:
            theirs = followed.get(member)
            if theirs is not None and (theirs.epoch, theirs.plan_version) == (order.epoch, order.plan_version):
                same = (theirs.kind, theirs.members, theirs.group) == (order.kind, order.members, order.group)
                if not same:
                    raise self.broken(f"{address} follows {order} and its fellow {theirs}")

    def _cover(self, order: Order, followed: dict[Address, Order]) -> None:
        orders = [followed[member] for member in order.members if member in followed]
        if len(orders) < len(order.members) or order.kind is not GroupKind.LOCAL:
            return
        is_whole = any(not len(one.layers) for one in orders)
        if not is_whole:
            raise self.broken(f"layers {list(order.layers)} are all that {order.members} hold", "I5")


class Slots(Watcher):
    """I8: no slot, no byte of room, no entry is lost or held twice, at any instant; in the end all are given back."""

    invariant = "I8"

    def __init__(self, cluster: Cluster, readers: Readers, faults: Faults) -> None:
        super().__init__(cluster, readers, faults)
        self._seen: dict[Address, int] = {}
        self._checks: dict[str, Callable[[Any], None]] = {
            "instance": lambda core: core.lives.slab.check_integrity(),
            "dispatcher": lambda core: core.journal.check_integrity(),
            "kvstore": lambda core: core.catalog.check_integrity(),
        }

    def after(self, event: Event) -> None:
        role = event.to.role
        if role not in self._checks:
            return
        core = self.cluster.core(event.to)
        if core is None:
            return
        seen = self._seen[event.to] = self._seen.get(event.to, 0) + 1
        if seen % FULL_EVERY == 0:
            self._check(role, core)
        elif role == "instance" and not core.slots.is_conserved:
            raise self.broken(f"{event.to}: {core.slots!r} after {event}")

    def audit(self) -> None:
        for address in sorted(self.cluster.cores):
            if address.role in self._checks:
                self._check(address.role, self.cluster.core(address))

    def at_end(self) -> None:
        for core in self.cluster.instances.values():
            held = core.slots.capacity - core.slots.free - core.lives.slab.cached
            if held:
                raise self.broken(f"{core.address} keeps {held} slots for nobody: {core!r}")
            if len(core.sequences):
                raise self.broken(f"{core.address} keeps {core.sequences!r}", "I12")
        for dispatcher in self.cluster.dispatchers.values():
            if len(dispatcher.journal):
                raise self.broken(f"{dispatcher.address} keeps {len(dispatcher.journal)} requests", "I12")
        for address in self.cluster.of_role("kvstore"):
            catalog = self.cluster.core(address).catalog
            if len(catalog):
                raise self.broken(f"{address} keeps {len(catalog)} regions for nobody")

    def _check(self, role: str, core: Any) -> None:
        try:
            self._checks[role](core)
        except Exception as error:
            raise self.broken(f"{core.address}: {type(error).__name__}: {error}") from error


class Rows(Watcher):
    """I8: what an outstanding step writes is nobody else's: no later step of another and no move has those slots."""

    invariant = "I8"

    def __init__(self, cluster: Cluster, readers: Readers, faults: Faults) -> None:
        super().__init__(cluster, readers, faults)
        self._written: dict[Address, dict[int, dict[int, int]]] = {}

    def before(self, event: Event) -> None:
        message = event.message
        if isinstance(message, Step) and event.to.role == "engine":
            steps = self._written.setdefault(event.sender, {})
            slots = _slots_of(message)
            self._are_free(event, slots, steps)
            steps[message.step] = slots
        elif isinstance(message, Move) and event.to.role == "engine" and message.kind is MoveKind.HOST_TO_SLAB:
            extents = zip(message.extent_start, message.extent_length, strict=True)
            slots = {slot: -1 for first, length in extents for slot in range(first, first + length)}
            self._are_free(event, slots, self._written.get(event.sender, {}))
        elif isinstance(message, StepDone):
            self._written.get(event.to, {}).pop(message.step, None)
        elif isinstance(message, EngineExited):
            self._written.pop(event.to, None)

    def _are_free(self, event: Event, slots: dict[int, int], steps: dict[int, dict[int, int]]) -> None:
        for step, written in steps.items():
            for slot in written.keys() & slots.keys():
                if written[slot] != slots[slot]:
                    text = f"slot {slot} is sequence {written[slot]}'s in outstanding step {step}"
                    raise self.broken(f"{text}, and given to another by {event}")


def _slots_of(step: Step) -> dict[int, int]:
    """The slots that its rows write, and whose each is."""
    extents = zip(step.extent_row, step.extent_start, step.extent_length, strict=True)
    return {slot: step.sequence[row] for row, first, length in extents for slot in range(first, first + length)}


class Authority(Watcher):
    """I9: a process that slept judges nobody by the time that it slept."""

    invariant = "I9"

    def __init__(self, cluster: Cluster, readers: Readers, faults: Faults) -> None:
        super().__init__(cluster, readers, faults)
        self._suspected: set[tuple[Address, Address]] = set()

    def before(self, event: Event) -> None:
        if isinstance(event.message, StopEngine) and event.to.role == "engine":
            self._stopped(event)
        elif isinstance(event.message, FleetView) and not self.faults.was_touched(event.to):
            for member in event.message.members:
                # By reader: one may hear of an old suspicion again when another has heard already that it is over.
                key = (event.to, member.address)
                if member.suspect and key not in self._suspected:
                    self._suspect(event, member.address)
                (self._suspected.add if member.suspect else self._suspected.discard)(key)

    def _stopped(self, event: Event) -> None:
        seat = self.cluster.seats.get(event.sender)
        why = getattr(event.message, "why", None)
        is_fair = seat is None or seat.engine.is_stuck or (why is not None and why.policy == "engine contract")
        if not is_fair:
            raise self.broken(f"{event.sender} ends an engine that works: {why}")

    def _suspect(self, event: Event, instance: Address) -> None:
        seat = self.cluster.seats.get(instance)
        is_fair = seat is None or seat.engine.is_stuck or self.faults.was_touched(instance)
        if not is_fair:
            raise self.broken(f"{event.sender} suspects {instance}, with which nothing is wrong")


class Limits(Watcher):
    """I11: no tenant has more at once than it may, and nobody new is let in where the queue is full."""

    invariant = "I11"

    def __init__(self, cluster: Cluster, readers: Readers, faults: Faults) -> None:
        super().__init__(cluster, readers, faults)
        self._full: int | None = None
        self._most_queued = cluster.spec.dispatcher_config().max_queued

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

    def before(self, event: Event) -> None:
        self._left = None
        is_withdrawn = isinstance(event.message, Withdraw) and event.message.finish is Finish.CANCELLED
        is_over = is_withdrawn or (isinstance(event.message, Gone) and event.sender.role == "client")
        if is_over and event.to.role == "dispatcher":
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
        for address, since_s in self.faults.asleep_s.items():
            if address.role == "instance":
                self._is_given_up(address, since_s)

    def _is_forgotten(self, reader: Reader) -> None:
        late_s = LATE_S if reader.is_heard else ORPHAN_S
        if self.cluster.world.now_s < reader.ended_s + late_s or self.faults.was_touched(*self.cluster.cores):
            return
        for core in self.cluster.instances.values():
            for sequence in core.sequences:
                is_his = sequence.place.key == reader.request
                if is_his:
                    raise self.broken(f"{core.address} goes on for {reader!r}, who left")

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


WATCHERS: tuple[type[Watcher], ...] = (
    Fencing,
    Leadership,
    Groups,
    Slots,
    Rows,
    Regions,
    Names,
    Authority,
    Limits,
    Progress,
)
