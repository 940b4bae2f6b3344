"""What campaigns ask of a FleetStatus. Pure, but for `wait_until`, which waits."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

from cli.launch.readiness import placeable
from dunlin.messages.fleet import FleetStatus, InstanceReport, KvstoreReport, MemberStatus

Look = Callable[[], Awaitable[FleetStatus]]


class NotReached(Exception):
    """What was waited for did not come to pass."""


def instances(status: FleetStatus) -> list[MemberStatus]:
    """The instances that are connected."""
    return [member for member in status.members if member.address.role == "instance" and member.connected]


def is_replaced(status: FleetStatus, dead: MemberStatus) -> bool:
    """Whether another process has the name of a killed instance, and takes requests."""
    same = [one for one in instances(status) if one.address.name == dead.address.name and one.pid != dead.pid]
    return any(map(placeable, same))


def reports(status: FleetStatus) -> Iterator[tuple[str, InstanceReport]]:
    """Name and report of every connected instance that has reported."""
    for member in instances(status):
        if member.instance is not None:
            yield member.address.name, member.instance


def tier(status: FleetStatus) -> tuple[MemberStatus, KvstoreReport] | None:
    """The connected kvstore, if it has reported."""
    found = [(m, m.kvstore) for m in status.members if m.connected and m.kvstore is not None]
    return found[0] if found else None


def unbalanced(status: FleetStatus) -> list[str]:
    """Instances whose slots do not add up to their capacity: there must be none, ever."""
    return [
        f"{name}: {parts} of {report.capacity_slots} slots"
        for name, report in reports(status)
        for parts in [
            report.free_slots
            + report.owned_slots
            + report.reserved_slots
            + report.moving_slots
            + report.quarantined_slots
        ]
        if parts != report.capacity_slots
    ]


def instances_with_used_slots(status: FleetStatus) -> list[str]:
    """Instances with slots that are neither free nor hold an unused prefix."""
    return [
        f"{n}: {r.free_slots + r.cached_slots} of {r.capacity_slots} free"
        for n, r in reports(status)
        if r.free_slots + r.cached_slots != r.capacity_slots
    ]


def placeable_count(status: FleetStatus) -> int:
    """How many instances can be given requests."""
    return sum(placeable(member) for member in instances(status))


def describe_members(status: FleetStatus) -> str:
    """All processes, and what keeps an instance from being given requests, in words for an error."""
    return ", ".join(_whereabouts(member) for member in status.members)


def _whereabouts(member: MemberStatus) -> str:
    report = member.instance
    if not member.connected or member.suspect:
        how = "not connected" if not member.connected else "suspect"
    elif report is None or placeable(member):
        how = "there"
    else:
        how = f"ready={report.ready} plan={report.plan_version} draining={report.draining}"
    return f"{member.address.name}#{member.address.incarnation} {how}"


async def wait_until(
    look: Look, condition: Callable[[FleetStatus], bool], what: str, limit_s: float = 60.0
) -> FleetStatus:
    """Look every 50 ms until the condition holds. Raises Unsettled saying what did not happen."""
    deadline_s = time.monotonic() + limit_s
    while not condition(status := await look()):
        if time.monotonic() > deadline_s:
            raise NotReached(f"after {limit_s:g} s still waiting for {what}: {describe_members(status)}")
        await asyncio.sleep(0.05)
    return status
