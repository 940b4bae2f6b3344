"""Dials members: one dialer per registered process of the roles that this service commands.

A registration that ends never closes an open stream; it only ends the attempts to open one. Roles that are dialled on
demand get a stream when the core asks for one with `DialPeer`, and no other once that one ends.
"""

from collections.abc import Collection, Mapping

from dunlin.effects import Address, Message
from dunlin.messages.group import DialPeer
from dunlin.messages.membership import Member, MemberDown, MembersReset, MemberUp
from dunlin.runtime.core_host import CoreHost
from dunlin.wire.envelopes import StreamProtocol
from dunlin.wire.security import IdentitySource
from dunlin.wire.streams.dialer import DialBackoff, StreamDialer
from dunlin.wire.streams.stream import StreamCounters, StreamLimits

"""The address to which a core sends `DialPeer` for a stream."""


class PeerDialer:
    """Owns the dialers. `dials` names the conversation per role; roles in `same_node` only count on node `node`.

    `on_demand` names the conversations of roles that are dialled when the core sends `DialPeer` to `DIALING`, the
    address of this outlet.
    """

    def __init__(
        self,
        host: CoreHost,
        dials: Mapping[str, StreamProtocol],
        *,
        node: str = "",
        same_node: Collection[str] = (),
        counters: StreamCounters | None = None,
        limits: StreamLimits | None = None,
        backoff: DialBackoff | None = None,
        security: IdentitySource | None = None,
        on_demand: Mapping[str, StreamProtocol] | None = None,
    ) -> None:
        self.counters = counters or StreamCounters()
        self._host = host
        self._dials = dict(dials)
        self._node = node
        self._same_node = frozenset(same_node)
        self._limits = limits
        self._backoff = backoff
        self._security = security
        self._dialers: dict[Address, StreamDialer] = {}
        self._on_demand = dict(on_demand or {})
        self._known: dict[Address, Member] = {}

    @property
    def wanted_peers(self) -> list[Address]:
        """The addresses of all dialers that have not ended."""
        return list(self._dialers)

    def is_dialing(self, peer: Address) -> bool:
        """Whether an attempt to reach `peer` is under way."""
        dialer = self._dialers.get(peer)
        return dialer is not None and not dialer.ended and not dialer.connected

    def apply(self, message: MembersReset | MemberUp | MemberDown) -> None:
        """Take a change of the membership in."""
        match message:
            case MembersReset():
                self._known.clear()
                listed = {member.address for member in message.members}
                for address in [address for address in self._dialers if address not in listed]:
                    self._drop(address)
                for member in message.members:
                    self._want(member)
            case MemberUp():
                self._want(message.member)
            case MemberDown():
                self._known.pop(message.address, None)
                self._drop(message.address)

    def send(self, message: Message) -> bool:
        """As an outlet: `DialPeer` opens a stream to a registered peer, unless there is one or one is on its way."""
        if isinstance(message, DialPeer) and message.peer in self._known and message.peer != self._host.address:
            dialer = self._dialers.get(message.peer)
            joined = message.peer in self._host.peers(message.peer.role)
            if not joined and (dialer is None or dialer.ended):
                self._dial(self._known[message.peer], self._on_demand[message.peer.role], persists=False)
        return True

    def close(self, reason: str) -> None:
        """As an outlet: `stop` ends the dialers."""

    async def stop(self) -> None:
        """End all dialers and their streams."""
        for dialer in list(self._dialers.values()):
            await dialer.stop()

    def _want(self, member: Member) -> None:
        if member.address.role in self._on_demand:
            self._known[member.address] = member
        conversation = self._dials.get(member.address.role)
        if conversation is None or member.address == self._host.address:
            return
        if member.address.role in self._same_node and member.node != self._node:
            return
        dialer = self._dialers.get(member.address)
        if dialer is not None and not dialer.ended:
            dialer.set_wanted(True)
            return
        self._dial(member, conversation, persists=True)

    def _dial(self, member: Member, conversation: StreamProtocol, persists: bool) -> None:
        self._dialers[member.address] = StreamDialer(
            self._host,
            member.address,
            member.endpoint,
            conversation,
            counters=self.counters,
            limits=self._limits,
            backoff=self._backoff,
            security=self._security,
            on_end=self._ended,
            persists=persists,
        )

    def _drop(self, address: Address) -> None:
        dialer = self._dialers.get(address)
        if dialer is not None:
            dialer.set_wanted(False)

    def _ended(self, dialer: StreamDialer) -> None:
        if self._dialers.get(dialer.peer) is dialer:
            del self._dialers[dialer.peer]
