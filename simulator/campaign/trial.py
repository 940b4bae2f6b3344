"""One run of a plan: a cluster with clients, faults and invariant watchers, until all clients ended and all is freed.

The same plan gives the same run, event by event.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from zlib import crc32

from dunlin.effects import Address, Message
from dunlin.messages.door import Quota
from simulator.campaign.batch_jobs import CampaignJobs
from simulator.campaign.clients import CampaignClient, CampaignClients
from simulator.campaign.cluster_shape import cluster_of
from simulator.campaign.coverage import Coverage, phase_of
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.catalog import WATCHERS
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.campaign.outcome import TrialOutcome
from simulator.campaign.plans import TENANTS, Fault, TrialPlan
from simulator.campaign.poison import PoisonBites
from simulator.campaign.violation import Violation
from simulator.cluster.network import Jitter
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

AUDIT_S = 0.5
"""Seconds between two audits of everything, while a client waits."""
AFTERWARDS_S = 5.0
"""The same after the last client ended, while graces run out."""
READY_S = 20.0
DONE_S = 240.0
SETTLED_S = 200.0
"""State that is kept for a peer's return is given up by then: graces of dispatchers and kvstores are 30 s."""
AIM_S, AIM_STEP_S = 1.0, 0.003
"""Seconds for which a fault waits for its phase, and between two looks."""


class CampaignTrial:
    """Runs one plan, once."""

    def __init__(self, plan: TrialPlan, coverage: Coverage | None = None) -> None:
        self.outcome = TrialOutcome(plan.seed, name=plan.name)
        self._plan = plan
        poison = {ask.number for ask in plan.requests if ask.poison}
        self.cluster = SimulatedCluster(cluster_of(plan.shape))
        self.cluster.world.keep_sent = False
        jitter = Jitter(plan.shape.latency_s, Random(f"{plan.seed} network"))
        self.cluster.world.extra_s = jitter
        self._clients = CampaignClients(self.cluster)
        self._faults = FaultInjector(self.cluster, self._clients, jitter, bool(poison))
        self._watchers = [watcher(self.cluster, self._clients, self._faults) for watcher in WATCHERS]
        if poison:
            bites = PoisonBites(self.cluster, self._clients, self._faults, poison, self.outcome.done)
            self._watchers.insert(0, bites)
        # Hot path: of each event only the watchers are told that override the hook and look at its receiver's role.
        self._befores = _hooks(self._watchers, "before")
        self._afters = _hooks(self._watchers, "after")
        self._sents = [one.sent for one in self._watchers if type(one).sent is not InvariantWatcher.sent]
        if coverage is not None and type(coverage).sent is not Coverage.sent:
            self._sents.append(coverage.sent)
        self._coverage = coverage
        self._audited_s = self._looked_s = 0.0

    def run(self) -> TrialOutcome:
        """Run the plan. A violation, or an exception of a core, is part of the outcome and never raised."""
        try:
            self._run()
        except Violation as violation:
            self.outcome.violation = violation
        except Exception as error:
            self.outcome.violation = violation_of(error, self.cluster.world.now_s)
            self.outcome.violation.__cause__ = error
        for watcher in self._watchers:
            self.outcome.excused += watcher.excused
        self.outcome.simulated_s = self.cluster.world.now_s
        self.outcome.events = self.cluster.world.delivered
        return self.outcome

    def _run(self) -> None:
        world = self.cluster.world
        world.before, world.on_delivered, world.on_sent = self._before, self._after, self._sent
        self._until(lambda: self.cluster.is_ready, READY_S, "the cluster is not ready")
        self._give_quotas()
        start_s = world.now_s
        for at_s, act in self._timed_actions():
            world.run(for_s=max(0.0, start_s + at_s - world.now_s))
            act()
        self._until(self._clients.all_done, DONE_S, "a client still waits", self._waiting)
        while world.now_s < self._faults.last_s:  # faults that wait for a phase
            world.run(for_s=self._faults.last_s - world.now_s)
        for client in self._clients.all:
            self.outcome.ends[_end_of(client)] += 1
        self._drain_and_audit()

    def _timed_actions(self) -> list[tuple[float, Callable[[], object]]]:
        """The planned calls by time; ties in the order of the plan."""
        acts: list[tuple[float, Callable[[], object]]] = []
        for ask in self._plan.requests:
            acts += self._clients.arrivals(ask)
        jobs = CampaignJobs(self.cluster, self._clients)
        acts += [(job.at_s, partial(jobs.begin, job)) for job in self._plan.jobs]
        for fault in self._plan.faults:
            acts.append((fault.at_s, partial(self._schedule_fault, fault)))
        return sorted(acts, key=lambda act: act[0])

    def _schedule_fault(self, fault: Fault) -> None:
        """Inject a fault now, or when a process is in the phase that it aims at, at the latest after `AIM_S`."""
        if not fault.aim:
            return self._inject(fault)
        until_s = self.cluster.world.now_s + AIM_S
        self._faults.last_s = max(self._faults.last_s, until_s)
        return self._wait_for_phase(fault, until_s)

    def _wait_for_phase(self, fault: Fault, until_s: float) -> None:
        is_there = any(phase_of(address, self.cluster) == fault.aim for address in self.cluster.cores)
        if is_there or self.cluster.world.now_s >= until_s:
            return self._inject(fault)
        return self.cluster.world.call_later(AIM_STEP_S, lambda: self._wait_for_phase(fault, until_s))

    def _inject(self, fault: Fault) -> None:
        phases = self._coverage.phases(self.cluster) if self._coverage is not None else {}
        victim = self._faults.inject(fault)
        if victim is None:
            return
        self.outcome.done[fault.kind] += 1
        if self._coverage is not None:
            self._coverage.fault_applied(fault.kind, victim.role, phases.get(victim, "gone"))

    def _before(self, event: Delivery) -> None:
        for before in self._befores.get(event.to.role, ()):
            before(event)

    def _sent(self, at_s: float, sender: Address, to: Address, message: Message) -> None:
        for sent in self._sents:
            sent(at_s, sender, to, message)

    def _after(self, event: Delivery) -> None:
        self.outcome.digest = chain_digest(self.outcome.digest, event)
        for after in self._afters.get(event.to.role, ()):
            after(event)
        if self._coverage is not None:
            self._coverage.delivered(self.cluster, event)
        if event.at_s > self._looked_s + AUDIT_S:
            self._looked_s = event.at_s
            self._audit_if_due(event.at_s)

    def _audit_if_due(self, now_s: float) -> None:
        if self._clients.open() or now_s > self._audited_s + AFTERWARDS_S:
            self._audited_s = now_s
            self._audit()

    def _audit(self) -> None:
        for watcher in self._watchers:
            watcher.audit()

    def _give_quotas(self) -> None:
        quotas = self._plan.shape.quotas
        if quotas is None:
            return
        running, per_minute = quotas
        self.cluster.etcd.set_quotas([Quota(one, running=running, tokens_per_minute=per_minute) for one in TENANTS])

    def _until(self, holds: Callable[[], bool], for_s: float, what: str, detail: Callable[[], str] = str) -> None:
        if not self.cluster.world.run(holds, for_s=for_s):
            raise Violation("I12", self.cluster.world.now_s, f"after {for_s:g} s {what}: {detail()}")

    def _waiting(self) -> str:
        open_jobs = [f"{job.record.id} at {job.holder}" for job in self._clients.jobs if job.record.is_open]
        return "; ".join([*(repr(client) for client in self._clients.all if not client.is_done), *open_jobs])

    def _drain_and_audit(self) -> None:
        for watcher in self._watchers:
            watcher.audit()
        self.cluster.world.run(self._is_empty, for_s=SETTLED_S)
        for watcher in self._watchers:
            watcher.audit()
            watcher.at_end()

    def _is_empty(self) -> bool:
        kvstores = [self.cluster.core(address) for address in self.cluster.of_role("kvstore")]
        instances = self.cluster.instances.values()
        return (
            not any(len(core.sequences) for core in instances)
            and not any(len(core.journal) for core in self.cluster.dispatchers.values())
            and not any(len(core.catalog) for core in kvstores)
            and all(
                core.slot_table.free + core.lifecycle.kv_cache.cached_slots == core.slot_table.capacity
                for core in instances
            )
        )


def _end_of(client: CampaignClient) -> str:
    if client.disconnected:
        return "left"
    return client.rejected.code.name.lower() if client.rejected is not None else client.finish.name.lower()


def _hooks(watchers: list[InvariantWatcher], name: str) -> dict[str, list[Callable[[Delivery], None]]]:
    """The overridden hooks of that name, by the role of the receiver."""
    hooks: dict[str, list[Callable[[Delivery], None]]] = {}
    for watcher in watchers:
        if getattr(type(watcher), name) is not getattr(InvariantWatcher, name):
            for role in watcher.roles:
                hooks.setdefault(role, []).append(getattr(watcher, name))
    return hooks


def chain_digest(digest: int, event: Delivery) -> int:
    """The next digest; CRC-32, so that it does not depend on Python's hash seed."""
    said = f"{event.at_s!r} {event.to.name} {event.sender.name} {type(event.message).__name__}"
    return crc32(said.encode(), digest)


INVARIANT_BY_WORDS = (
    ("tenant", "I6"),
    ("another's KV", "I6"),
    ("wild", "I6"),
    ("KV ends at", "I6"),
    ("region", "I7"),
    ("no row wrote", "I7"),
    ("slots", "I8"),
    ("slot", "I8"),
)


def violation_of(error: Exception, now_s: float) -> Violation:
    """The violation that an exception stands for: a model's ContractBroken names an invariant by its words."""
    text = f"{type(error).__name__}: {error}"
    for words, invariant in INVARIANT_BY_WORDS:
        if words in str(error):
            return Violation(invariant, now_s, text)
    return Violation("core", now_s, text)
