"""Bugs to plant in the kvstore, the monitor and the global manager."""

from tests.zoo.plant import Bug, Edit

CATALOG = "services.kvstore.catalog"
MANAGER = "services.global_manager.core"

BUGS = (
    Bug(
        "old-generation-obeyed",
        "a region's old name still reaches it",
        ("I7", "I8", "I6"),
        (
            Edit(
                CATALOG,
                "if entry is None or entry.writer != writer or entry.host.generation != generation:",
                "if entry is None:",
            ),
        ),
        seed=100282,
    ),
    Bug(
        "unwritten-region-claimed",
        "a region is given away before its copy is whole",
        ("I7", "I8", "core"),
        (Edit(CATALOG, "return entry.state is State.COMMITTED and fits", "return fits"),),
        seed=100497,
    ),
    Bug(
        "claimed-under-its-old-name",
        "a claimed region keeps the name that its writer knows",
        ("I7", "I8", "core"),
        (Edit("services.kvstore.room", "self._generations[handle - 1] += 1\n        renamed", "renamed"),),
        seed=100307,
    ),
    Bug(
        "unequal-books",
        "what is freed is counted without its padding",
        ("I8",),
        (Edit("services.kvstore.room", "self.free_bytes += held.room_bytes", "self.free_bytes += held.length_bytes"),),
        seed=30000,
    ),
    Bug(
        "orphans-never-freed",
        "what a writer that left had kept stays for ever",
        ("I8",),
        (Edit("services.kvstore.core", "self.catalog.free_orphans(message.writer, message.absence)", "pass"),),
        seed=100312,
    ),
    Bug(
        "copies-outlive-their-originals",
        "other nodes are not told that what they keep copies of is gone",
        ("I8",),
        (Edit(CATALOG, "self._freed[entry.asked.key] = None", "pass"),),
        seed=4206840,
    ),
    Bug(
        "silent-writer-s-room-lost",
        "room that a writer was writing when its stream broke is never used again",
        ("I8",),
        (Edit("services.kvstore.core", "self.catalog.free_quarantined(sender, but=", "(lambda it: None)("),),
        seed=100312,
    ),
    Bug(
        "quarantine-skipped",
        "room that a silent writer may still be writing is given to another",
        ("I9", "I7", "I8"),
        (
            Edit(
                CATALOG,
                "self._entries[entry.host.handle] = replace(entry, state=State.QUARANTINED)",
                "self._remove(entry)",
            ),
        ),
        seed=100324,
    ),
    Bug(
        "deposed-leader-leads",
        "a leader that lost its term goes on giving orders",
        ("I3", "I9"),
        (Edit(MANAGER, "self.term = self.moves = self.handovers = None\n", "pass\n"),),
        seed=100324,
    ),
    Bug(
        "own-epoch",
        "a candidate that is elected leads the epoch after the one that etcd gave it",
        ("I3",),
        (Edit(MANAGER, "self.term = Term(message.epoch)", "self.term = Term(message.epoch + 1)"),),
        seed=30000,
    ),
    Bug(
        "plan-version-repeated",
        "a changed plan has the version of the one before",
        ("I4",),
        (
            Edit(
                "services.global_manager.plan",
                "if changed:\n            self.plan_version += 1",
                "if changed:\n            self.plan_version = 1",
            ),
        ),
        seed=40048,
    ),
    Bug(
        "one-group-for-all",
        "instances that serve alone are given the same group",
        ("I4",),
        (Edit("dunlin.policies.group", "return [_local(number, candidate", "return [_local(1, candidate"),),
        seed=30000,
    ),
    Bug(
        "half-the-layers",
        "an instance that serves alone is ordered to hold half of the model, and does",
        ("I5",),
        (
            Edit(
                "services.global_manager.plan",
                "group.members, why=group.why)",
                'group.members, __import__("array").array("i", (0,)), why=group.why)',
            ),
            Edit("services.instance.orders", "if is_local and not order.layers:", "if is_local:"),
        ),
        seed=30000,
    ),
    Bug(
        "monitor-forgives-nothing",
        "a monitor that slept holds everybody responsible for the time",
        ("I9",),
        (Edit("services.monitor.core", "watch.forgive(now_s)", "pass"),),
        seed=40007,
    ),
    Bug(
        "old-suspicion-told-again",
        "a monitor that slept tells whom it suspected before, though they may be well since",
        ("I9",),
        (
            Edit(
                "services.monitor.core",
                "if watch.suspect:\n                self._unheard",
                "if False:\n                self._unheard",
            ),
        ),
        seed=4002831,
    ),
    Bug(
        "monitor-never-suspects",
        "an instance that is silent for long is trusted",
        ("I12",),
        (
            Edit(
                "services.monitor.watch",
                "is_silent, is_stuck = silent_s >= self._config.silent_s, stuck_s >= self._config.stuck_s",
                "is_silent, is_stuck = False, False",
            ),
        ),
        seed=100435,
    ),
    Bug(
        "outlived-process-heard",
        "a process whose successor runs is still there for the monitor",
        ("I2", "I9", "I12"),
        (
            Edit(
                "services.monitor.registry",
                "return address.incarnation < self._newest.get((address.role, address.name), 0)",
                "return address.incarnation < 0",
            ),
        ),
        seed=100378,
    ),
    Bug(
        "index-keeps-the-dead",
        "a region that was freed is still entered as one of its request",
        ("I8", "core"),
        (Edit(CATALOG, "_drop_from(self._of_key, entry.asked.key, entry.host.handle)", "pass"),),
        seed=50002,
    ),
    Bug(
        "impatient-monitor",
        "an instance is suspected between two of its reports",
        ("I9",),
        (
            Edit(
                "services.monitor.watch",
                "is_silent, is_stuck = silent_s >= self._config.silent_s,",
                "is_silent, is_stuck = silent_s >= self._config.silent_s / 20,",
            ),
        ),
        seed=50002,
    ),
)
