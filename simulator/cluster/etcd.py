"""What cores see of etcd: who is a member, and who leads. Registrations outlive their process by a lease's time.

While it is down nobody hears anything, nobody is elected and nobody can start; afterwards everybody gets the whole
membership anew. Knows processes by their addresses alone, and no core.
"""

from collections.abc import Sequence

from dunlin.effects import Address, Message
from dunlin.messages.door import Quota, Quotas
from dunlin.messages.membership import Deposed, Elected, Member, MemberDown, MembersReset, MemberUp
from simulator.cluster.world import World

ETCD = Address("etcd", "")
LEASE_S = 5.0
"""How long a registration, and a term, outlive the last sign of life."""
FOLLOWERS = ("monitor", "kvstore", "dispatcher")
"""The roles whose cores follow the membership."""


class EtcdModel:
    """Owns members, candidates, revisions and quotas. Tells nobody anything until it was told to `begin`: thousands of
    processes that start together learn of each other at once, and once.
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
        """Whoever is registered."""
        return [member.address for member in self._members.values()]

    def next_revision(self) -> int:
        """A number that nothing had before: an incarnation, or an epoch."""
        self._revision += 1
        return self._revision

    def begin(self) -> None:
        """All that were registered so far hear of each other, and one is elected."""
        self._has_begun = True
        self.reset()
        self._elect()

    def register(self, address: Address, node: str) -> None:
        """A process starts; one of the same name before it is a member no more."""
        key = (address.role, address.name)
        before, member = self._members.get(key), Member(address, "", node, pid=0)
        self._members[key] = member
        if before is not None:
            self._forget(before.address)
        if self._has_begun:
            self._tell(MemberUp(member))
        if address.role in FOLLOWERS:
            self._followers[address] = None
        if address.role == "global_manager":
            self._candidates.append(address)
        if self._has_begun:
            self._inform([address])
            self._elect()

    def limit(self, quotas: Sequence[Quota]) -> None:
        """From now on dispatchers hear of these."""
        self.quotas = tuple(quotas)
        for address in self._followers:
            self._give_quotas(address)

    def died(self, address: Address) -> None:
        """The process ended: its lease runs out."""
        self._world.later(LEASE_S, lambda: self._expired(address))

    def sleeps(self, address: Address) -> None:
        """The process keeps no lease alive: its term ends, but not its registration, for it answers a probe."""
        self._world.later(LEASE_S, lambda: self._over(address) if self._world.is_paused(address) else None)

    def fail(self, for_s: float) -> None:
        """Nobody is there for a while. A leader steps down when its own clock says that its lease may be over."""
        self.is_down = True
        self._outages += 1
        outage, leader = self._outages, self.leader
        self._world.later(LEASE_S, lambda: self._over(leader) if self.is_down and outage == self._outages else None)
        self._world.later(for_s, lambda: self._return(outage))

    def reset(self) -> None:
        """The watches' history was compacted: everybody gets the whole membership anew."""
        if not self.is_down:
            self._inform(self._followers)

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
            return self._world.later(1.0, lambda: self._expired(address))
        self._over(address)
        if address in self._candidates:
            self._candidates.remove(address)
        member = self._members.get((address.role, address.name))
        if member is not None and member.address == address:
            del self._members[address.role, address.name]
            self._forget(address)

    def _forget(self, address: Address) -> None:
        self._followers.pop(address, None)
        if self._has_begun:
            self._tell(MemberDown(address))

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
            return self._world.later(1.0, self._elect) if self._candidates else None
        self.leader = able[0]
        epoch = self.next_revision()
        self.terms[epoch] = self.leader
        self._world.post(ETCD, self.leader, Elected(epoch))

    def _tell(self, message: Message) -> None:
        for address in self._followers:
            self._world.post(ETCD, address, message)

    def _inform(self, whom: "Sequence[Address] | dict[Address, None]") -> None:
        """They get all that there is, if they follow it."""
        everybody = MembersReset(tuple(sorted(self._members.values(), key=lambda member: member.address)))
        for address in whom:
            if address in self._followers:
                self._world.post(ETCD, address, everybody)
                self._give_quotas(address)

    def _give_quotas(self, address: Address) -> None:
        if address.role == "dispatcher" and self.quotas:
            self._world.post(ETCD, address, Quotas(self.quotas))
