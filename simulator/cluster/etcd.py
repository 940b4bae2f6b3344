"""What cores see of etcd: the membership and the elected manager. A registration outlives its process by a lease.

During an outage no message is sent, no manager is elected and no process can start; afterwards all followers receive
the whole membership. Knows addresses and no core.
"""

from collections.abc import Iterable, Sequence

from dunlin.effects import Address, Message
from dunlin.messages.door import Quota, Quotas
from dunlin.messages.membership import Deposed, Elected, Member, MemberDown, MembersReset, MemberUp
from simulator.cluster.world import World

ETCD = Address("etcd", "")
LEASE_S = 5.0
"""Seconds for which a registration and a term outlive the last keepalive."""
WATCHING_ROLES = ("monitor", "kvstore", "dispatcher")
"""Roles whose cores watch the membership."""


class SimulatedEtcd:
    """Owns members, candidates, revisions and quotas.

    It sends nothing before `begin`, so that thousands of processes that start together learn of each other in one
    message. `terms`: the manager of each epoch.
    """

    def __init__(self, world: World) -> None:
        self.is_down = False
        self.leader: Address | None = None
        self.terms: dict[int, Address] = {}
        self.quotas: tuple[Quota, ...] = ()
        self._world = world
        self._has_begun = False
        self._revision = 1
        self._members: dict[tuple[str, str], Member] = {}
        self._followers: dict[Address, None] = {}
        self._candidates: list[Address] = []
        self._outages = 0

    @property
    def members(self) -> list[Address]:
        """The registered processes."""
        return [member.address for member in self._members.values()]

    def next_revision(self) -> int:
        """A number that was not used before, for an incarnation or an epoch."""
        self._revision += 1
        return self._revision

    def begin(self) -> None:
        """Send the membership to all registered followers, and elect a manager."""
        self._has_begun = True
        self.compact_history()
        self._elect()

    def register(self, address: Address, node: str) -> None:
        """Register a process that starts; an older one of the same name is removed."""
        key = (address.role, address.name)
        before, member = self._members.get(key), Member(address, "", node, pid=0)
        self._members[key] = member
        if before is not None:
            self._remove_follower(before.address)
        if self._has_begun:
            self._broadcast(MemberUp(member))
        if address.role in WATCHING_ROLES:
            self._followers[address] = None
        if address.role == "global_manager":
            self._candidates.append(address)
        if self._has_begun:
            self._send_membership([address])
            self._elect()

    def set_quotas(self, quotas: Sequence[Quota]) -> None:
        """Set the tenants' quotas and send them to the dispatchers."""
        self.quotas = tuple(quotas)
        for address in self._followers:
            self._send_quotas(address)

    def died(self, address: Address) -> None:
        """A process ended: its lease runs out."""
        self._world.call_later(LEASE_S, lambda: self._lease_expired(address))

    def paused(self, address: Address) -> None:
        """A process was stopped: its term ends with its lease, its registration stays, because it answers a probe."""
        self._world.call_later(LEASE_S, lambda: self._end_term(address) if self._world.is_paused(address) else None)

    def begin_outage(self, for_s: float) -> None:
        """etcd is down for `for_s` seconds. A leader steps down when its lease may be over by its own clock."""
        self.is_down = True
        self._outages += 1
        outage, leader = self._outages, self.leader
        self._world.call_later(
            LEASE_S, lambda: self._end_term(leader) if self.is_down and outage == self._outages else None
        )
        self._world.call_later(for_s, lambda: self._end_outage(outage))

    def compact_history(self) -> None:
        """The watch history was compacted: all followers receive the whole membership."""
        if not self.is_down:
            self._send_membership(self._followers)

    def resign(self) -> None:
        """The leader loses its term although it runs; it is a candidate again, behind the others."""
        if self.leader is not None and not self.is_down:
            self._end_term(self.leader)

    def _end_outage(self, outage: int) -> None:
        if outage != self._outages:
            return
        self.is_down = False
        self.compact_history()
        self._elect()

    def _lease_expired(self, address: Address) -> None:
        if self.is_down:
            return self._world.call_later(1.0, lambda: self._lease_expired(address))
        self._end_term(address)
        if address in self._candidates:
            self._candidates.remove(address)
        member = self._members.get((address.role, address.name))
        if member is not None and member.address == address:
            del self._members[address.role, address.name]
            self._remove_follower(address)

    def _remove_follower(self, address: Address) -> None:
        self._followers.pop(address, None)
        if self._has_begun:
            self._broadcast(MemberDown(address))

    def _end_term(self, address: Address | None) -> None:
        """End the term of `address` if it leads. A stopped leader receives that before anything else."""
        if address is None or self.leader != address:
            return
        epoch = max(self.terms)
        self.leader = None
        if self._world.is_up(address):
            self._world.post_first(ETCD, address, Deposed(epoch))
        if address in self._candidates:
            self._candidates.remove(address)
            self._candidates.append(address)
        self._elect()

    def _elect(self) -> None:
        able = [one for one in self._candidates if self._world.is_up(one) and not self._world.is_paused(one)]
        if self.leader is not None or self.is_down:
            return
        if not able:
            return self._world.call_later(1.0, self._elect) if self._candidates else None
        self.leader = able[0]
        epoch = self.next_revision()
        self.terms[epoch] = self.leader
        self._world.post(ETCD, self.leader, Elected(epoch))

    def _broadcast(self, message: Message) -> None:
        for address in self._followers:
            self._world.post(ETCD, address, message)

    def _send_membership(self, receivers: "Iterable[Address]") -> None:
        """Send membership and quotas to those that follow them."""
        members = MembersReset(tuple(sorted(self._members.values(), key=lambda member: member.address)))
        for address in receivers:
            if address in self._followers:
                self._world.post(ETCD, address, members)
                self._send_quotas(address)

    def _send_quotas(self, address: Address) -> None:
        if address.role == "dispatcher" and self.quotas:
            self._world.post(ETCD, address, Quotas(self.quotas))
