"""The FleetView's versions: what was published, what changed since, and how urgent that is. Knows no subscriber."""

from dataclasses import fields
from operator import attrgetter

from dunlin.effects import Address
from dunlin.messages.fleet import FleetView, InstanceReport, MemberView
from dunlin.messages.types import Why


def member_view(
    address: Address, node: str, report: InstanceReport | None, suspect: bool, why: Why | None
) -> MemberView:
    """The view of an instance that dispatchers and managers get."""
    if report is None:
        return MemberView(address, node, suspect, why=why)
    return MemberView(
        address,
        node=node,
        suspect=suspect,
        ready=report.ready,
        capacity_slots=report.capacity_slots,
        free_slots=report.free_slots + report.cached_slots,
        max_positions=report.max_positions,
        running=report.running,
        waiting=report.waiting,
        waiting_tokens=report.waiting_tokens,
        epoch=report.epoch,
        plan_version=report.plan_version,
        group=report.group,
        kind=report.kind,
        part=report.part,
        why=why,
        draining=report.draining,
        head_waiting_tokens=report.head_waiting_tokens,
        leaving=report.leaving,
        preempts_batch=report.preempts_batch,
        preemptible_slots=report.preemptible_slots,
        preemptible_running=report.preemptible_running,
        batch_waiting=report.batch_waiting,
        batch_waiting_tokens=report.batch_waiting_tokens,
        weights_digest=report.weights_digest,
        guest_slots=report.guest_slots,
    )


_LOAD = (
    *("free_slots", "running", "waiting", "waiting_tokens", "head_waiting_tokens", "leaving"),
    *("preemptible_slots", "preemptible_running", "batch_waiting", "batch_waiting_tokens", "guest_slots"),
)
_OF_NOTE = attrgetter(*(field.name for field in fields(MemberView) if field.name not in _LOAD))
"""The fields of a view that are not load: a change of one is published soon."""


class FleetViews:
    """The published FleetView, and the changes that wait for the next version. Version 1 is empty."""

    def __init__(self) -> None:
        self.version = 1
        self.urgent = False
        self._published: dict[Address, MemberView] = {}
        self._waiting: dict[Address, MemberView | None] = {}
        self._named: dict[str, dict[Address, None]] = {}

    @property
    def changed(self) -> bool:
        """Whether a new version would differ from the published one."""
        return bool(self._waiting)

    def put(self, view: MemberView) -> None:
        """Set the view of an instance."""
        self._named.setdefault(view.address.name, {})[view.address] = None
        published = self._published.get(view.address)
        if view == published:
            self._waiting.pop(view.address, None)
            self.urgent &= self.changed
            return
        self.urgent |= published is None or _OF_NOTE(view) != _OF_NOTE(published)
        self._waiting[view.address] = view

    def remove(self, address: Address) -> None:
        """Remove an instance."""
        if address in self._published:
            self._waiting[address] = None
            self.urgent = True
        else:
            self._waiting.pop(address, None)
            self.urgent &= self.changed
            self._forget(address)

    def incarnations(self, name: str) -> list[Address]:
        """Every instance of that name that is published or about to be."""
        return list(self._named.get(name, ()))

    def publish(self) -> FleetView:
        """The next version, as the difference to the one before."""
        base, self.version = self.version, self.version + 1
        members = tuple(view for view in self._waiting.values() if view is not None)
        removed = tuple(address for address, view in self._waiting.items() if view is None)
        for view in members:
            self._published[view.address] = view
        for address in removed:
            del self._published[address]
            self._forget(address)
        self._waiting.clear()
        self.urgent = False
        return FleetView(self.version, members, base, removed)

    def snapshot(self) -> FleetView:
        """The whole published version, for a subscriber without one."""
        return FleetView(self.version, tuple(self._published.values()))

    def _forget(self, address: Address) -> None:
        named = self._named.get(address.name, {})
        named.pop(address, None)
        if not named:
            self._named.pop(address.name, None)
