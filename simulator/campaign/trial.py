"""One run of a plan: a cluster, its clients, faults and watchers, until everybody is done and the dust has settled.

The same plan gives the same run, event by event.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from zlib import crc32

from dunlin.effects import Address
from dunlin.messages.door import Quota, Rejection
from dunlin.messages.types import Finish
from services.instance.sequences import Sequence
from simulator.campaign.clients import CampaignClient, CampaignClients
from simulator.campaign.cluster_shape import cluster_of
from simulator.campaign.coverage import Coverage, phase_of
from simulator.campaign.faults.catalog import FaultInjector
from simulator.campaign.invariants.catalog import WATCHERS
from simulator.campaign.invariants.watcher import InvariantWatcher
from simulator.campaign.plans import TENANTS, Fault, TrialPlan
from simulator.campaign.violation import Violation
from simulator.cluster.network import Jitter
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster

AUDIT_S = 0.5
"""Between two looks at everything, while somebody waits for something."""
AFTERWARDS_S = 5.0
"""The same while what is left behind is given up."""
READY_S = 20.0
DONE_S = 240.0
SETTLED_S = 200.0
"""What is kept for who may come back is given up by then: dispatchers' and kvstores' graces are 30 s."""
AIM_S, AIM_STEP_S = 1.0, 0.003
"""For how long a fault takes aim, and how often it looks."""
MOST_ALONE = 2
"""Engines that a request may crash while it runs alone, in one attempt (services/instance/suspects.py)."""
LEGAL_ERRORS = ("given up after", "no instance has been able to serve")


@dataclass
class TrialOutcome:
    """What came of a run. `digest` is of all that was delivered: two runs of a plan have the same."""

    seed: int
    violation: Violation | None = None
    simulated_s: float = 0.0
    events: int = 0
    digest: int = 0
    done: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)


class CampaignTrial:
    """Runs one plan, once."""

    def __init__(self, plan: TrialPlan, coverage: Coverage | None = None) -> None:
        self.outcome = TrialOutcome(plan.seed)
        self._plan = plan
        self._poison = {ask.number for ask in plan.requests if ask.poison}
        self.cluster = SimulatedCluster(cluster_of(plan.shape))
        self.cluster.world.keep_sent = False
        jitter = Jitter(plan.shape.latency_s, Random(f"{plan.seed} network"))
        self.cluster.world.extra_s = jitter
        self._readers = CampaignClients(self.cluster)
        self._faults = FaultInjector(self.cluster, self._readers, jitter, bool(self._poison))
        self._watchers = [watcher(self.cluster, self._readers, self._faults) for watcher in WATCHERS]
        # Nearly all that a run does is to deliver events: who has nothing to say to one is not asked.
        self._befores = [one.before for one in self._watchers if type(one).before is not InvariantWatcher.before]
        self._afters = [one.after for one in self._watchers if type(one).after is not InvariantWatcher.after]
        self._coverage = coverage
        self._audited_s = 0.0
        self._alone: Counter[tuple[object, ...]] = Counter()

    def run(self) -> TrialOutcome:
        """The outcome; a violation is in it, never raised."""
        try:
            self._run()
        except Violation as violation:
            self.outcome.violation = violation
        except Exception as error:
            self.outcome.violation = violation_of(error, self.cluster.world.now_s)
            self.outcome.violation.__cause__ = error
        self.outcome.simulated_s = self.cluster.world.now_s
        self.outcome.events = self.cluster.world.delivered
        return self.outcome

    def _run(self) -> None:
        world = self.cluster.world
        world.before, world.on_delivered = self._before, self._after
        self._until(lambda: self.cluster.is_ready, READY_S, "the cluster is not ready")
        self._give_quotas()
        start_s = world.now_s
        for at_s, act in self._timed_actions():
            world.run(for_s=max(0.0, start_s + at_s - world.now_s))
            act()
        self._until(self._readers.all_done, DONE_S, "somebody still waits", self._waiting)
        while world.now_s < self._faults.last_s:  # who took aim strikes meanwhile
            world.run(for_s=self._faults.last_s - world.now_s)
        for reader in self._readers.all:
            self._check_end(reader)
        self._drain_and_audit()

    def _timed_actions(self) -> list[tuple[float, Callable[[], object]]]:
        """Everything planned, in order of time; ties in the order of the plan."""
        acts: list[tuple[float, Callable[[], object]]] = []
        for ask in self._plan.requests:
            acts += self._readers.arrivals(ask)
        for fault in self._plan.faults:
            acts.append((fault.at_s, partial(self._schedule_fault, fault)))
        return sorted(acts, key=lambda act: act[0])

    def _schedule_fault(self, fault: Fault) -> None:
        """Now, or when somebody is in the phase that it is aimed at; not much later in any case."""
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
        for before in self._befores:
            before(event)

    def _after(self, event: Delivery) -> None:
        self.outcome.digest = chain_digest(self.outcome.digest, event)
        if self._poison and event.to.role == "instance":
            self._crash_on_poison(event)
        for after in self._afters:
            after(event)
        if self._coverage is not None:
            self._coverage.delivered(self.cluster, event)
        if event.at_s > self._audited_s + (AUDIT_S if self._readers.open() else AFTERWARDS_S):
            self._audited_s = event.at_s
            self._audit()

    def _audit(self) -> None:
        for watcher in self._watchers:
            watcher.audit()

    def _crash_on_poison(self, event: Delivery) -> None:
        """A poison request crashes the engine as soon as a row of it is executed."""
        core = self.cluster.core(event.to)
        if core is None or self.cluster.world.is_paused(event.to) or not self.cluster.has_engine(event.to):
            return
        rows = [sequence for sequence, _ in core.steps.executing()]
        if any(sequence.place.sampling.seed in self._poison for sequence in rows):
            self.cluster.engine_supervisors[event.to].crash(signal=11)
            self.outcome.done["bite"] += 1
            if len(rows) == 1:
                self._check_poison_blamed(event.to, rows[0])

    def _check_poison_blamed(self, instance: Address, sequence: Sequence) -> None:
        """Who crashes engines alone is stopped before he does so again and again."""
        attempt = (instance, sequence.dispatcher, sequence.place.request, sequence.place.attempt)
        self._alone[attempt] += 1
        # `suspicion` is 1 more than the engines that it crashed alone, elsewhere too.
        if self._alone[attempt] > MOST_ALONE or sequence.suspicion > MOST_ALONE:
            text = f"{sequence.name} crashed {self._alone[attempt]} engines of {instance} alone ({sequence.suspicion})"
            raise Violation("I12", self.cluster.world.now_s, text)

    def _give_quotas(self) -> None:
        quotas = self._plan.shape.quotas
        if quotas is None:
            return
        running, per_minute = quotas
        self.cluster.etcd.set_quotas([Quota(one, running=running, tokens_per_minute=per_minute) for one in TENANTS])

    def _until(self, holds: Callable[[], bool], for_s: float, what: str, who: Callable[[], str] = str) -> None:
        if not self.cluster.world.run(holds, for_s=for_s):
            raise Violation("I12", self.cluster.world.now_s, f"after {for_s:g} s {what}: {who()}")

    def _waiting(self) -> str:
        return "; ".join(repr(reader) for reader in self._readers.all if not reader.is_done)

    def _check_end(self, reader: CampaignClient) -> None:
        """Whether it may have ended as it did."""
        self.outcome.ends[_end_of(reader)] += 1
        if not self._may_end(reader):
            raise Violation("I1", self.cluster.world.now_s, f"{reader!r} should not have ended so")

    def _may_end(self, reader: CampaignClient) -> bool:
        if reader.disconnected:
            return True
        if reader.rejected is not None:
            passing = (Rejection.FULL, Rejection.QUOTA, Rejection.UNAVAILABLE)
            return reader.rejected.code in passing or bool(reader.submit.timeout_s)
        if reader.planned.number in self._poison:
            is_late = reader.finish is Finish.DEADLINE and reader.submit.timeout_s is not None
            return (reader.finish is Finish.ERROR or is_late) and not reader.tokens
        if reader.finish is Finish.ERROR:
            is_blamed = "poison" in reader.detail and self._faults.engines.crashes >= 2
            return is_blamed or reader.detail.startswith(LEGAL_ERRORS)
        if reader.finish is Finish.DEADLINE:
            return reader.submit.timeout_s is not None
        return reader.finish is Finish.LENGTH and reader.tokens == reader.expected

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
            and all(core.slots.free + core.lives.slab.cached == core.slots.capacity for core in instances)
        )


def _end_of(reader: CampaignClient) -> str:
    if reader.disconnected:
        return "left"
    return reader.rejected.code.name.lower() if reader.rejected is not None else reader.finish.name.lower()


def chain_digest(digest: int, event: Delivery) -> int:
    """A digest that is the same in every process, whatever its strings hash to."""
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
    """What an error in a core or in a model means: which invariant an engine's model found broken, by its words."""
    text = f"{type(error).__name__}: {error}"
    for words, invariant in INVARIANT_BY_WORDS:
        if words in str(error):
            return Violation(invariant, now_s, text)
    return Violation("core", now_s, text)
