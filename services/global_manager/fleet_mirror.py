"""The fleet as the monitor last described it. A mirror: it adds nothing and judges nothing."""

from operator import attrgetter

from dunlin.effects import Address
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.types import GroupRole

_SHAPE = attrgetter("ready", "suspect", "draining", "capacity_slots", "part")
"""The fields of a view that plans depend on, which change seldom; load changes all the time."""


class FleetMirror:
    """The instances of the newest FleetView, kept up to date by differences.

    A difference to a version that is not the one held is dropped: a stream begins with everything. `is_reshaped`: the
    last one changed the set of instances or their `_SHAPE`, not load alone. `has_moves`: one drains or prefills.
    """

    def __init__(self) -> None:
        self.members: dict[Address, MemberView] = {}
        self.is_reshaped = False
        self.has_moves = False
        self._monitor: Address | None = None
        self._version = 0

    def apply(self, monitor: Address, view: FleetView) -> bool:
        """Apply a view; False if it does not follow the held version, or is of an older incarnation of the monitor."""
        if self._monitor is not None and _is_older(monitor, self._monitor):
            return False
        before = self.members if view.base_version else {}
        shape = [_SHAPE(before[one.address]) if one.address in before else None for one in view.members]
        if view.base_version == 0:
            self.members = {member.address: member for member in view.members}
        elif monitor == self._monitor and view.base_version == self._version:
            for address in view.removed:
                self.members.pop(address, None)
            self.members.update((member.address, member) for member in view.members)
        else:
            return False
        self._monitor, self._version = monitor, view.version
        self.is_reshaped = not view.base_version or bool(view.removed) or shape != [_SHAPE(one) for one in view.members]
        if self.is_reshaped:
            self.has_moves = any(one.draining or one.part is GroupRole.PREFILL for one in self.members.values())
        return True


def _is_older(one: Address, other: Address) -> bool:
    return one.name == other.name and one.incarnation < other.incarnation
