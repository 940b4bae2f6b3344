"""The endpoints of the monitors, from the membership, for clients that ask for them. No decision depends on it."""

from dunlin.effects import Address
from dunlin.messages.membership import Member, MemberDown, MembersReset, MemberUp


class MonitorDirectory:
    """Owns the registered monitors' endpoints by address."""

    def __init__(self) -> None:
        self._endpoints: dict[Address, str] = {}

    @property
    def monitor_endpoint(self) -> str:
        """The newest registered monitor's `host:port`; empty while there is none."""
        newest = max(self._endpoints, key=lambda address: address.incarnation, default=None)
        return "" if newest is None else self._endpoints[newest]

    def apply(self, message: MembersReset | MemberUp | MemberDown) -> None:
        """Apply a change of the membership, or replace it by a full list."""
        match message:
            case MembersReset(members):
                self._endpoints = {}
                for member in members:
                    self._add(member)
            case MemberUp(member):
                self._add(member)
            case MemberDown(address):
                self._endpoints.pop(address, None)

    def _add(self, member: Member) -> None:
        if member.address.role == "monitor":
            self._endpoints[member.address] = member.endpoint
