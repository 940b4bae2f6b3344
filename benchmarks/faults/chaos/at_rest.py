"""What must hold of a cluster after all clients ended and all faults recovered: I8, I12 and its processes.

Pure, but for `tracebacks` and `open_files`, which read files.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.harness.fleet_status import instances_with_used_slots, placeable_count, unbalanced
from benchmarks.harness.processes import descriptors
from dunlin.messages.fleet import FleetStatus

MORE_DESCRIPTORS = 24
"""Connections and files that a process may have more at the end than before: pools of peers that came and went."""


def unsettled(status: FleetStatus, roles: Mapping[str, int]) -> list[str]:
    """What a cluster still has to do until it is at rest. `roles`: how many processes of each there are."""
    missing = []
    there = [member.address.role for member in status.members if member.connected and not member.suspect]
    missing += [
        f"I12: {there.count(role)} of {count} {role}s are there"
        for role, count in roles.items()
        if there.count(role) != count
    ]
    if placeable_count(status) != roles.get("instance", 0):
        missing.append(f"I12: {placeable_count(status)} instances are placeable")
    missing += [f"I8: {text}" for text in (*unbalanced(status), *instances_with_used_slots(status))]
    for member in status.members:
        name, store, door = member.address.name, member.kvstore, member.dispatcher
        if store is not None and (store.regions or store.used_bytes):
            missing.append(f"I8: {name} keeps {store.regions} regions, {store.used_bytes} bytes, without an owner")
        if door is not None and (door.queued or door.running):
            missing.append(f"I12: {name} has {door.queued} queued and {door.running} running requests")
    return missing


def leaked(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Processes, by name, with many more descriptors than before."""
    return [
        f"{name} has {count} descriptors, {before[name]} before"
        for name, count in after.items()
        if name in before and count > before[name] + MORE_DESCRIPTORS
    ]


def open_files(pids: Mapping[str, int]) -> dict[str, int]:
    """The descriptors of each process by its name."""
    return {name: descriptors(pid) for name, pid in pids.items()}


def tracebacks(logs: Iterable[Path]) -> list[str]:
    """The last line of each traceback in the logs."""
    return [f"{log.name}: {text}" for log in logs for text in traceback_ends(log.read_text(errors="replace"))]


def traceback_ends(text: str) -> list[str]:
    """The line with the exception of each traceback of a log."""
    lines, found, is_inside = text.splitlines(), [], False
    for line in lines:
        if line.startswith("Traceback (most recent call last)"):
            is_inside = True
        elif is_inside and line and not line.startswith((" ", "\t")):
            is_inside = False
            found.append(line)
    return found
