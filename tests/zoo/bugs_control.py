"""Bugs to plant in the kvstore, the monitor and the global manager."""

from collections.abc import Callable
from dataclasses import replace

from dunlin.cores.gap_limit import GapLimit
from dunlin.effects import Address, Effect
from dunlin.messages.membership import Deposed
from dunlin.messages.plan import GroupOrder
from dunlin.messages.types import GroupRole, i32
from dunlin.policies.groups.group import local_groups
from dunlin.policies.groups.group_plan import Group
from services.global_manager.core import GlobalManagerCore
from services.global_manager.plan_term import PlanTerm
from services.instance.scheduling.group_orders import GroupOrders
from services.kvstore.core import KvstoreCore
from services.kvstore.regions.allocator import RangeAllocator
from services.kvstore.regions.catalog import RegionCatalog, RegionEntry, RegionState, _drop_from, may_claim
from services.monitor.core import MonitorCore
from services.monitor.registry import Registry
from services.monitor.watchdog import InstanceWatchdog
from tests.zoo.plant import Bug, skip, swap

IMPATIENCE = 20
"""By so much the impatient monitor shortens the silence that it bears."""


def _free_without_padding(
    original: Callable[[RangeAllocator, int, int], bool], self: RangeAllocator, handle: int, generation: int
) -> bool:
    held = self.find(handle, generation)
    if held is not None:
        self.free_bytes -= held.padded_bytes - held.length_bytes
    return original(self, handle, generation)


def _remove_untold(original: object, self: RegionCatalog, entry: RegionEntry) -> None:
    self._unindex(entry)
    self.allocator.free(entry.host.handle, entry.host.generation)


def _orphan_unquarantined(
    original: Callable[[RegionCatalog, Address, int], int], self: RegionCatalog, writer: Address, absence: int
) -> int:
    unfinished = [entry for entry in self.entries_of(writer) if entry.state is not RegionState.COMMITTED]
    for entry in unfinished:
        self._remove(entry)
    return len(unfinished) + original(self, writer, absence)


def _drop_unindexed(original: object, self: RegionCatalog, entry: RegionEntry) -> None:
    del self._entries[entry.host.handle]
    _drop_from(self._of, entry.writer, entry.host.handle)
    if entry.writer not in self._of:
        _drop_from(self._named, (entry.writer.role, entry.writer.name), entry.writer)


def _lead_on(
    original: object, self: GlobalManagerCore, now_s: float, sender: Address, message: Deposed
) -> list[Effect]:
    if self.term is None or message.epoch != self.term.epoch:
        self.totals.stale += 1
        return []
    return self._heartbeat.sends()


def _order_of_version_1(
    original: Callable[[PlanTerm, Group, GroupRole], GroupOrder], self: PlanTerm, group: Group, role: GroupRole
) -> GroupOrder:
    self.plan_version = 1
    return original(self, group, role)


def _wake_sure(original: object, self: MonitorCore, now_s: float) -> None:
    self._tick_due_s = now_s
    for watch in self._watchdogs.values():
        watch.restart_clocks(now_s)
    if self._without_report:
        self._warm, self._warm_by_s = False, now_s + self._view_pace.warm_up_s


def _judge_soon(original: Callable[[InstanceWatchdog, float], bool], self: InstanceWatchdog, now_s: float) -> bool:
    usual, limit_s = self.gaps, self._config.silent_s / IMPATIENCE
    self.gaps = GapLimit(limit_s, limit_s, times=1.0)
    try:
        return original(self, now_s)
    finally:
        self.gaps = usual


BUGS = (
    Bug(
        "old-generation-obeyed",
        "a region's old name still reaches it",
        ("I7", "I8", "I6"),
        (swap(RegionCatalog.find, lambda original, self, writer, handle, generation: self._entries.get(handle)),),
        seed=40310,
    ),
    Bug(
        "unwritten-region-claimed",
        "a region is given away before its copy is whole",
        ("I7", "I8", "core"),
        (
            swap(
                may_claim, lambda original, entry, wanted: original(replace(entry, state=RegionState.COMMITTED), wanted)
            ),
        ),
        seed=100497,
    ),
    Bug(
        "claimed-under-its-old-name",
        "a claimed region keeps the name that its writer knows",
        ("I7", "I8", "core"),
        (
            swap(
                RangeAllocator.renew_generation,
                lambda original, self, handle, generation: self.find(handle, generation),
            ),
        ),
        seed=40310,
    ),
    Bug(
        "unequal-books",
        "what is freed is counted without its padding",
        ("I8",),
        (swap(RangeAllocator.free, _free_without_padding),),
        seed=30000,
    ),
    Bug(
        "orphans-never-freed",
        "what a writer that left had kept stays for ever",
        ("I8",),
        (skip(RegionCatalog.free_orphans, lambda: None, called_by=KvstoreCore._on_grace_over),),
        seed=341,
    ),
    Bug(
        "copies-outlive-their-originals",
        "other nodes are not told that what they keep copies of is gone",
        ("I8",),
        (swap(RegionCatalog._remove, _remove_untold),),
        seed=300326,
    ),
    Bug(
        "silent-writer-s-room-lost",
        "room that a writer was writing when its stream broke is never used again",
        ("I8",),
        (skip(RegionCatalog.free_quarantined, lambda: None, called_by=KvstoreCore._on_writing),),
        seed=40324,
    ),
    Bug(
        "quarantine-skipped",
        "room that a silent writer may still be writing is given to another",
        ("I9", "I7", "I8"),
        (swap(RegionCatalog.orphan_writer, _orphan_unquarantined),),
        seed=40412,
    ),
    Bug(
        "deposed-leader-leads",
        "a leader that lost its term goes on giving orders",
        ("I3", "I9"),
        (swap(GlobalManagerCore._on_deposed, _lead_on),),
        seed=300346,
    ),
    Bug(
        "own-epoch",
        "a candidate that is elected leads the epoch after the one that etcd gave it",
        ("I3",),
        (
            swap(
                PlanTerm.__init__,
                lambda original, self, epoch: original(self, epoch + 1),
                called_by=GlobalManagerCore._on_elected,
            ),
        ),
        seed=30000,
    ),
    Bug(
        "plan-version-repeated",
        "a changed plan has the version of the one before",
        ("I4",),
        (swap(PlanTerm._order, _order_of_version_1),),
        seed=365,
    ),
    Bug(
        "one-group-for-all",
        "instances that serve alone are given the same group",
        ("I4",),
        (
            swap(
                local_groups,
                lambda original, candidates, *terms: [
                    replace(group, number=1) for group in original(candidates, *terms)
                ],
            ),
        ),
        seed=30000,
    ),
    Bug(
        "half-the-layers",
        "an instance that serves alone is ordered to hold half of the model, and does",
        ("I5",),
        (
            swap(
                PlanTerm._order,
                lambda original, self, group, role: replace(original(self, group, role), layers=i32([0])),
            ),
            swap(GroupOrders._refusal, lambda original, self, order: original(self, replace(order, layers=i32()))),
        ),
        seed=300368,
    ),
    Bug(
        "monitor-forgives-nothing",
        "a monitor that slept holds every process responsible for that time",
        ("I9",),
        (skip(InstanceWatchdog.restart_clocks, lambda: None, called_by=MonitorCore._after_sleep),),
        seed=300371,
    ),
    Bug(
        "old-suspicion-told-again",
        "a monitor that slept publishes its old suspicions, of processes that may be well since",
        ("I9",),
        (swap(MonitorCore._after_sleep, _wake_sure),),
        seed=4002831,
    ),
    Bug(
        "monitor-never-suspects",
        "an instance that is silent for long is trusted",
        ("I12",),
        (skip(InstanceWatchdog.update_suspicion, bool),),
        seed=40403,
    ),
    Bug(
        "outlived-process-heard",
        "a process whose successor runs is still there for the monitor",
        ("I2", "I9", "I12"),
        (skip(Registry.is_superseded, bool),),
        seed=100378,
    ),
    Bug(
        "index-keeps-the-dead",
        "a region that was freed is still entered as one of its request",
        ("I8", "core"),
        (swap(RegionCatalog._unindex, _drop_unindexed),),
        seed=50002,
    ),
    Bug(
        "impatient-monitor",
        "an instance is suspected between two of its reports",
        ("I9",),
        (swap(InstanceWatchdog.update_suspicion, _judge_soon),),
        seed=300415,
    ),
)
