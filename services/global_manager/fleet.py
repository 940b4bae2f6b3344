"""The fleet as the monitor last described it. A mirror: it adds nothing and judges nothing."""

from dunlin.effects import Address
from dunlin.messages.fleet import FleetView, MemberView


class Fleet:
    """The instances of the newest FleetView, kept up to date by differences.

    A difference to a version that is not the one held is dropped: a stream begins with everything.
    """

    def __init__(self) -> None:
        self.members: dict[Address, MemberView] = {}
        self._monitor: Address | None = None
        self._version = 0

    def apply(self, monitor: Address, view: FleetView) -> bool:
        """Take a view in; False when it does not follow what is held, or an older incarnation of its monitor speaks."""
        if self._monitor is not None and _is_older(monitor, self._monitor):
            return False
        if view.base_version == 0:
            self.members = {member.address: member for member in view.members}
        elif monitor == self._monitor and view.base_version == self._version:
            for address in view.removed:
                self.members.pop(address, None)
            self.members.update((member.address, member) for member in view.members)
        else:
            return False
        self._monitor, self._version = monitor, view.version
        return True


def _is_older(one: Address, other: Address) -> bool:
    return one.name == other.name and one.incarnation < other.incarnation
