"""The members: registrations, open streams and the newest report of each process. Decides nothing."""

from dunlin.effects import Address
from dunlin.messages.fleet import (
    PARTIES,
    DispatcherReport,
    InstanceReport,
    KvstoreReport,
    ManagerReport,
    MemberStatus,
)
from dunlin.messages.membership import Member

Report = InstanceReport | DispatcherReport | KvstoreReport | ManagerReport
MAX_GONE_NAMES = 1024
"""Names of processes that are gone of which the newest incarnation is remembered, the last that went: one that was
replaced may wake late, but not after a thousand others came and went.
"""


class Registry:
    """Processes by address. One is present while it is registered or has a stream, unless a newer incarnation is."""

    def __init__(self, own: Address) -> None:
        self._own = own
        self._members: dict[Address, Member] = {}
        self._streams: dict[Address, None] = {}
        self._by_role: dict[str, dict[Address, int]] = {}
        self._joins = 0
        self._reports: dict[Address, Report] = {}
        self._heard_s: dict[Address, float] = {}
        # A process once replaced by a newer incarnation stays replaced, even if the newer one ends. By role and name,
        # and those of which no incarnation is known any more in the order in which they went.
        self._newest: dict[tuple[str, str], int] = {}
        self._gone: dict[tuple[str, str], None] = {}
        self._remember_incarnation(own)

    def register(self, member: Member) -> None:
        """It is a member, or its record changed."""
        self._members[member.address] = member
        self._remember_incarnation(member.address)

    def deregister(self, address: Address) -> None:
        """It is no member any more: a probe failed, or its name was taken. It may still have a stream."""
        self._members.pop(address, None)
        self._forget_if_absent(address)

    def stream_opened(self, address: Address) -> None:
        """A stream to it is open."""
        if address not in self._streams:
            self._joins += 1
            self._streams[address] = None
            self._by_role.setdefault(address.role, {})[address] = self._joins
        self._remember_incarnation(address)

    def stream_closed(self, address: Address) -> None:
        """Its stream ended."""
        self._streams.pop(address, None)
        self._by_role.get(address.role, {}).pop(address, None)
        self._forget_if_absent(address)

    def see(self, now_s: float, address: Address) -> None:
        """It is present: a process that never reports is silent from the first time on."""
        if address.role in PARTIES.dialers and self.is_present(address):
            self._heard_s.setdefault(address, now_s)

    def record_report(self, now_s: float, address: Address, report: Report) -> None:
        """Keep its newest report."""
        self._reports[address] = report
        self._heard_s[address] = now_s

    def registered(self) -> list[Address]:
        """The registered processes."""
        return list(self._members)

    def is_connected(self, address: Address) -> bool:
        """Whether it has a stream, or is this process."""
        return address in self._streams or address == self._own

    def is_superseded(self, address: Address) -> bool:
        """Whether a newer incarnation of the same process was seen."""
        return address.incarnation < self._newest.get((address.role, address.name), 0)

    def is_present(self, address: Address) -> bool:
        """Whether it is present: registered or with a stream, and not replaced."""
        return (address in self._members or self.is_connected(address)) and not self.is_superseded(address)

    def present(self) -> list[Address]:
        """All present processes, by role, name and incarnation."""
        known = {self._own: None} | dict.fromkeys(self._members) | dict.fromkeys(self._streams)
        return sorted(address for address in known if not self.is_superseded(address))

    def connected(self, *roles: str) -> list[Address]:
        """The processes of these roles that have a stream, in the order of joining."""
        joined = [(number, one) for role in roles for one, number in self._by_role.get(role, {}).items()]
        return [address for _, address in sorted(joined)]

    def node_of(self, address: Address) -> str:
        """The machine it is registered on; empty when unknown."""
        member = self._members.get(address)
        return member.node if member else ""

    def report_of(self, address: Address) -> Report | None:
        """Its newest report."""
        return self._reports.get(address)

    def status(self, now_s: float, address: Address, suspect: bool) -> MemberStatus:
        """One line of the fleet's status."""
        member = self._members.get(address)
        report = self._reports.get(address)
        return MemberStatus(
            address,
            node=member.node if member else "",
            endpoint=member.endpoint if member else "",
            pid=member.pid if member else 0,
            connected=self.is_connected(address),
            suspect=suspect,
            silent_s=now_s - self._heard_s[address] if address in self._heard_s else 0.0,
            instance=report if isinstance(report, InstanceReport) else None,
            dispatcher=report if isinstance(report, DispatcherReport) else None,
            kvstore=report if isinstance(report, KvstoreReport) else None,
            manager=report if isinstance(report, ManagerReport) else None,
        )

    def _remember_incarnation(self, address: Address) -> None:
        key = (address.role, address.name)
        self._newest[key] = max(address.incarnation, self._newest.get(key, 0))
        self._gone.pop(key, None)

    def _forget_if_absent(self, address: Address) -> None:
        if address not in self._members and address not in self._streams:
            self._reports.pop(address, None)
            self._heard_s.pop(address, None)
            self._note_gone(address)

    def _note_gone(self, address: Address) -> None:
        key = (address.role, address.name)
        known = (self._own, *self._members, *self._streams)
        if key not in self._newest or any((one.role, one.name) == key for one in known):
            return
        self._gone[key] = None
        if len(self._gone) > MAX_GONE_NAMES:
            oldest = next(iter(self._gone))
            del self._gone[oldest], self._newest[oldest]
