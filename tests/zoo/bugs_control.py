"""Bugs to plant in the kvstore, the monitor and the global manager."""

from collections.abc import Callable
from dataclasses import replace

from dunlin.effects import Address, Effect
from dunlin.messages.membership import Deposed
from dunlin.messages.plan import Order
from dunlin.messages.types import Part, i32
from dunlin.policies.group import Group, local_groups
from services.global_manager.core import GlobalManagerCore
from services.global_manager.plan import Term
from services.instance.orders import Orders
from services.kvstore.catalog import Catalog, Entry, State, _drop_from, may_claim
from services.kvstore.core import KvstoreCore
from services.kvstore.room import Room
from services.monitor.core import MonitorCore
from services.monitor.registry import Registry
from services.monitor.watch import Watch
from tests.zoo.plant import Bug, skip, swap

IMPATIENCE = 20
"""By so much the impatient monitor shortens the silence that it bears."""


def _free_without_padding(original: Callable[[Room, int, int], bool], self: Room, handle: int, generation: int) -> bool:
    held = self.find(handle, generation)
    if held is not None:
        self.free_bytes -= held.room_bytes - held.length_bytes
    return original(self, handle, generation)


def _remove_untold(original: object, self: Catalog, entry: Entry) -> None:
    self._drop(entry)
    self.room.free(entry.host.handle, entry.host.generation)


def _orphan_unquarantined(
    original: Callable[[Catalog, Address, int], int], self: Catalog, writer: Address, absence: int
) -> int:
    unfinished = [entry for entry in self.entries_of(writer) if entry.state is not State.COMMITTED]
    for entry in unfinished:
        self._remove(entry)
    return len(unfinished) + original(self, writer, absence)


def _drop_unindexed(original: object, self: Catalog, entry: Entry) -> None:
    del self._entries[entry.host.handle]
    _drop_from(self._of, entry.writer, entry.host.handle)
    if entry.writer not in self._of:
        _drop_from(self._named, (entry.writer.role, entry.writer.name), entry.writer)


def _lead_on(
    original: object, self: GlobalManagerCore, now_s: float, sender: Address, message: Deposed
) -> list[Effect]:
    if self.term is None or message.epoch != self.term.epoch:
        self.stale_total += 1
        return []
    return self._heartbeat.sends()


def _order_of_version_1(original: Callable[[Term, Group, Part], Order], self: Term, group: Group, part: Part) -> Order:
    self.plan_version = 1
    return original(self, group, part)


def _wake_sure(original: object, self: MonitorCore, now_s: float) -> None:
    self._tick_due_s = now_s
    for watch in self._watches.values():
        watch.forgive(now_s)
    if self._unheard:
        self._warm, self._warm_by_s = False, now_s + self._view_pace.warm_up_s


def _judge_soon(original: Callable[[Watch, float], bool], self: Watch, now_s: float) -> bool:
    config = self._config
    self._config = replace(config, silent_s=config.silent_s / IMPATIENCE)
    try:
        return original(self, now_s)
    finally:
        self._config = config


BUGS = (
    Bug(
        "old-generation-obeyed",
        "a region's old name still reaches it",
        ("I7", "I8", "I6"),
        (swap(Catalog.find, lambda original, self, writer, handle, generation: self._entries.get(handle)),),
        seed=100282,
    ),
    Bug(
        "unwritten-region-claimed",
        "a region is given away before its copy is whole",
        ("I7", "I8", "core"),
        (swap(may_claim, lambda original, entry, wanted: original(replace(entry, state=State.COMMITTED), wanted)),),
        seed=100497,
    ),
    Bug(
        "claimed-under-its-old-name",
        "a claimed region keeps the name that its writer knows",
        ("I7", "I8", "core"),
        (swap(Room.rename, lambda original, self, handle, generation: self.find(handle, generation)),),
        seed=100307,
    ),
    Bug(
        "unequal-books",
        "what is freed is counted without its padding",
        ("I8",),
        (swap(Room.free, _free_without_padding),),
        seed=30000,
    ),
    Bug(
        "orphans-never-freed",
        "what a writer that left had kept stays for ever",
        ("I8",),
        (skip(Catalog.free_orphans, lambda: None, called_by=KvstoreCore._on_grace_over),),
        seed=100312,
    ),
    Bug(
        "copies-outlive-their-originals",
        "other nodes are not told that what they keep copies of is gone",
        ("I8",),
        (swap(Catalog._remove, _remove_untold),),
        seed=4206840,
    ),
    Bug(
        "silent-writer-s-room-lost",
        "room that a writer was writing when its stream broke is never used again",
        ("I8",),
        (skip(Catalog.free_quarantined, lambda: None, called_by=KvstoreCore._on_writing),),
        seed=100312,
    ),
    Bug(
        "quarantine-skipped",
        "room that a silent writer may still be writing is given to another",
        ("I9", "I7", "I8"),
        (swap(Catalog.orphan, _orphan_unquarantined),),
        seed=100324,
    ),
    Bug(
        "deposed-leader-leads",
        "a leader that lost its term goes on giving orders",
        ("I3", "I9"),
        (swap(GlobalManagerCore._on_deposed, _lead_on),),
        seed=100324,
    ),
    Bug(
        "own-epoch",
        "a candidate that is elected leads the epoch after the one that etcd gave it",
        ("I3",),
        (
            swap(
                Term.__init__,
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
        (swap(Term._order, _order_of_version_1),),
        seed=40048,
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
                Term._order, lambda original, self, group, part: replace(original(self, group, part), layers=i32([0]))
            ),
            swap(Orders._refusal, lambda original, self, order: original(self, replace(order, layers=i32()))),
        ),
        seed=30000,
    ),
    Bug(
        "monitor-forgives-nothing",
        "a monitor that slept holds every process responsible for that time",
        ("I9",),
        (skip(Watch.forgive, lambda: None, called_by=MonitorCore._wake),),
        seed=40007,
    ),
    Bug(
        "old-suspicion-told-again",
        "a monitor that slept publishes its old suspicions, of processes that may be well since",
        ("I9",),
        (swap(MonitorCore._wake, _wake_sure),),
        seed=4002831,
    ),
    Bug(
        "monitor-never-suspects",
        "an instance that is silent for long is trusted",
        ("I12",),
        (skip(Watch.judge, bool),),
        seed=100435,
    ),
    Bug(
        "outlived-process-heard",
        "a process whose successor runs is still there for the monitor",
        ("I2", "I9", "I12"),
        (skip(Registry.is_outlived, bool),),
        seed=100378,
    ),
    Bug(
        "index-keeps-the-dead",
        "a region that was freed is still entered as one of its request",
        ("I8", "core"),
        (swap(Catalog._drop, _drop_unindexed),),
        seed=50002,
    ),
    Bug(
        "impatient-monitor",
        "an instance is suspected between two of its reports",
        ("I9",),
        (swap(Watch.judge, _judge_soon),),
        seed=50002,
    ),
)
