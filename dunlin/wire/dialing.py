"""Who is dialled: out of membership, one dialer per registered process of the roles that this service commands.

A registration that ends never closes an open stream; it only ends the attempts to open one.
"""

from collections.abc import Collection, Mapping

from dunlin.effects import Address
from dunlin.host import Host
from dunlin.messages.membership import Member, MemberDown, MembersReset, MemberUp
from dunlin.wire.dialer import Backoff, Dialer
from dunlin.wire.envelopes import Conversation
from dunlin.wire.security import Security
from dunlin.wire.streams import Counters, Limits


class Dialing:
    """Owns the dialers. `dials` names the conversation per role; roles in `same_node` only count on node `node`."""

    def __init__(
        self,
        host: Host,
        dials: Mapping[str, Conversation],
        *,
        node: str = "",
        same_node: Collection[str] = (),
        counters: Counters | None = None,
        limits: Limits | None = None,
        backoff: Backoff | None = None,
        security: Security | None = None,
    ) -> None:
        self.counters = counters or Counters()
        self._host = host
        self._dials = dict(dials)
        self._node = node
        self._same_node = frozenset(same_node)
        self._limits = limits
        self._backoff = backoff
        self._security = security
        self._dialers: dict[Address, Dialer] = {}

    @property
    def dialled(self) -> list[Address]:
        """Whom the dialers call or have called; a dialer that ended is not among them."""
        return list(self._dialers)

    def apply(self, message: MembersReset | MemberUp | MemberDown) -> None:
        """Take a change of the membership in."""
        match message:
            case MembersReset():
                listed = {member.address for member in message.members}
                for address in [address for address in self._dialers if address not in listed]:
                    self._drop(address)
                for member in message.members:
                    self._want(member)
            case MemberUp():
                self._want(message.member)
            case MemberDown():
                self._drop(message.address)

    async def stop(self) -> None:
        """End all dialers and their streams."""
        for dialer in list(self._dialers.values()):
            await dialer.stop()

    def _want(self, member: Member) -> None:
        conversation = self._dials.get(member.address.role)
        if conversation is None or member.address == self._host.address:
            return
        if member.address.role in self._same_node and member.node != self._node:
            return
        dialer = self._dialers.get(member.address)
        if dialer is not None and not dialer.ended:
            dialer.want(True)
            return
        self._dialers[member.address] = Dialer(
            self._host,
            member.address,
            member.endpoint,
            conversation,
            counters=self.counters,
            limits=self._limits,
            backoff=self._backoff,
            security=self._security,
            on_end=self._ended,
        )

    def _drop(self, address: Address) -> None:
        dialer = self._dialers.get(address)
        if dialer is not None:
            dialer.want(False)

    def _ended(self, dialer: Dialer) -> None:
        if self._dialers.get(dialer.peer) is dialer:
            del self._dialers[dialer.peer]
