"""What cores see of etcd: who is a member, and who leads. Registrations outlive their process by a lease's time.

While it is down nobody hears anything, nobody is elected and nobody can start; afterwards everybody gets the whole
membership anew. Knows processes by their addresses alone, and no core.
"""

from collections.abc import Callable

from dunlin.effects import Address
from dunlin.messages.membership import Deposed, Elected, Member, MemberDown, MembersReset, MemberUp
from simulator.world import World

ETCD = Address("etcd", "")
LEASE_S = 5.0
"""How long a registration, and a term, outlive the last sign of life."""


class EtcdModel:
    """Owns members, candidates and revisions. `later` calls something back after so many seconds."""

    def __init__(self, world: World, later: Callable[[float, Callable[[], object]], None]) -> None:
        self.is_down = False
        self.leader: Address | None = None
        self.terms: dict[int, Address] = {}
        self._world = world
        self._later = later
        self._revision = 1
        self._members: dict[tuple[str, str], Member] = {}
        self._candidates: list[Address] = []
        self._outages = 0

    @property
    def members(self) -> list[Address]:
        """Whoever is registered."""
        return [member.address for member in self._members.values()]

    def next_revision(self) -> int:
        """A number that nothing had before: an incarnation, or an epoch."""
        self._revision += 1
        return self._revision

    def register(self, address: Address, node: str) -> None:
        """A process starts; one of the same name before it is a member no more."""
        key = (address.role, address.name)
        before, member = self._members.get(key), Member(address, "", node, pid=0)
        self._members[key] = member
        for other in self.members:
            if other != address:
                if before is not None:
                    self._world.post(ETCD, other, MemberDown(before.address))
                self._world.post(ETCD, other, MemberUp(member))
        self._world.post(ETCD, address, self._all())
        if address.role == "global_manager":
            self._candidates.append(address)
            self._elect()

    def died(self, address: Address) -> None:
        """The process ended: its lease runs out."""
        self._later(LEASE_S, lambda: self._expired(address))

    def sleeps(self, address: Address) -> None:
        """The process keeps no lease alive: its term ends, but not its registration, for it answers a probe."""
        self._later(LEASE_S, lambda: self._over(address) if self._world.is_paused(address) else None)

    def fail(self, for_s: float) -> None:
        """Nobody is there for a while. A leader steps down when its own clock says that its lease may be over."""
        self.is_down = True
        self._outages += 1
        outage, leader = self._outages, self.leader
        self._later(LEASE_S, lambda: self._over(leader) if self.is_down and outage == self._outages else None)
        self._later(for_s, lambda: self._return(outage))

    def reset(self) -> None:
        """The watches' history was compacted: everybody gets the whole membership anew."""
        for address in [] if self.is_down else self.members:
            self._world.post(ETCD, address, self._all())

    def resign(self) -> None:
        """The leader loses its term, although it lives; it stands anew behind the others."""
        if self.leader is not None and not self.is_down:
            self._over(self.leader)

    def _return(self, outage: int) -> None:
        if outage != self._outages:
            return
        self.is_down = False
        self.reset()
        self._elect()

    def _expired(self, address: Address) -> None:
        if self.is_down:
            return self._later(1.0, lambda: self._expired(address))
        self._over(address)
        if address in self._candidates:
            self._candidates.remove(address)
        member = self._members.get((address.role, address.name))
        if member is not None and member.address == address:
            del self._members[address.role, address.name]
            for other in self.members:
                self._world.post(ETCD, other, MemberDown(address))

    def _over(self, address: Address | None) -> None:
        """The term of `address` is over, if it leads. One that sleeps hears so before anything else."""
        if address is None or self.leader != address:
            return
        epoch = max(self.terms)
        self.leader = None
        if self._world.is_up(address):
            self._world.tell_first(ETCD, address, Deposed(epoch))
        if address in self._candidates:
            self._candidates.remove(address)
            self._candidates.append(address)
        self._elect()

    def _elect(self) -> None:
        able = [one for one in self._candidates if self._world.is_up(one) and not self._world.is_paused(one)]
        if self.leader is not None or self.is_down:
            return
        if not able:
            return self._later(1.0, self._elect) if self._candidates else None
        self.leader = able[0]
        epoch = self.next_revision()
        self.terms[epoch] = self.leader
        self._world.post(ETCD, self.leader, Elected(epoch))

    def _all(self) -> MembersReset:
        return MembersReset(tuple(sorted(self._members.values(), key=lambda member: member.address)))
