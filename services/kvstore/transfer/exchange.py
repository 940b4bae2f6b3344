"""Exchange of regions with the kvstores of other nodes: copies in both directions, and searches.

Routes to the two directions; decides which node gets a second copy, and which nodes are asked for a request that is
unknown here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dunlin.cores.handlers import handlers_of, handles
from dunlin.effects import Address, After, Effect, Handler, Message, Send
from dunlin.messages.declare import declaration_of
from dunlin.messages.exchange import CopiesSent, DropCopies, Offer, RequestCopies, TransferAgent
from dunlin.messages.group import DIALING, DialPeer
from dunlin.messages.membership import Member
from dunlin.messages.pool import FindRegions, RegionsSent, SendRegions
from dunlin.messages.types import Priority, Why
from services.kvstore.config import ExchangeConfig
from services.kvstore.regions.catalog import RegionCatalog, RegionEntry, RegionState, may_claim
from services.kvstore.transfer.incoming import IncomingCopies
from services.kvstore.transfer.outgoing import OutgoingCopies
from services.kvstore.transfer.transport_commands import TRANSPORT, ForgetPeer

SearchDone = Callable[[], list[Effect]]


@dataclass(frozen=True, slots=True)
class SearchDue:
    """The time of the other nodes to answer a search is over."""

    search: int


@dataclass(slots=True)
class PeerSearch:
    """One search: the claiming instance, the kvstores that have not answered, and the callback for the end."""

    asker: Address
    find: FindRegions
    done: SearchDone
    waiting: dict[Address, None] = field(default_factory=dict)


class RegionExchange:
    """Owns the known kvstores of other nodes and the searches under way."""

    def __init__(
        self,
        address: Address,
        node: str,
        agent: TransferAgent | None,
        config: ExchangeConfig,
        catalog: RegionCatalog,
        why_not: Callable[[Offer], Why | None],
    ) -> None:
        self.outgoing = OutgoingCopies(catalog, config.stall_timeout_s, config.max_jobs, agent)
        self.incoming = IncomingCopies(catalog, why_not)
        self._address = address
        self._node = node
        self._has_agent = agent is not None
        self._config = config
        self._catalog = catalog
        self._registered: dict[Address, None] = {}
        self._peers: dict[Address, None] = {}
        self._searches: dict[int, PeerSearch] = {}
        self._numbers = 0

    @property
    def handlers(self) -> dict[type[Any], Handler]:
        """Handle messages of joined kvstores, and of this process's transport and timers."""
        table = handlers_of(self, self.outgoing, self.incoming)
        return {kind: self._from_peers(do) if declaration_of(kind) else do for kind, do in table.items()}

    def add_peer(self, member: Member) -> None:
        """A kvstore of another node is registered."""
        if member.address.role == "kvstore" and member.node != self._node:
            self._registered[member.address] = None

    def registered_peers(self) -> list[Address]:
        """The kvstores of other nodes that are registered."""
        return list(self._registered)

    def remove_peer(self, address: Address) -> None:
        """A kvstore of another node is not registered any more."""
        self._registered.pop(address, None)

    def on_peer_joined(self, peer: Address) -> list[Effect]:
        """A stream to another kvstore is open."""
        self._peers[peer] = None
        effects = self.outgoing.on_peer_joined(peer)
        for number, search in self._searches.items():
            if peer in search.waiting:
                effects.append(Send(peer, RequestCopies(number, search.find)))
        return effects

    def on_peer_gone(self, peer: Address) -> list[Effect]:
        """The stream to another kvstore ended."""
        self._peers.pop(peer, None)
        effects = [*self.outgoing.on_peer_gone(peer), *self.incoming.on_peer_gone(peer)]
        if self._has_agent:
            effects.append(Send(TRANSPORT, ForgetPeer(peer)))
        for number in list(self._searches):
            effects += self._answered(number, peer)
        return effects

    def cancel_for(self, asker: Address) -> list[Effect]:
        """An instance's stream ended: its searches get no answer, even if it is back."""
        self._searches = {number: one for number, one in self._searches.items() if one.asker != asker}
        return []

    def send_regions(self, now_s: float, asker: Address, message: SendRegions) -> list[Effect]:
        """Copy an instance's regions of a request to another kvstore."""

        def over(tokens: int, detail: str) -> list[Effect]:
            return [Send(asker, RegionsSent(message.ticket, tokens, detail))]

        mine: Callable[[RegionEntry], bool] = lambda entry: entry.writer == asker  # noqa: E731
        return self.outgoing.start(message.key, message.to, message.priority, mine, over)

    def replicate(self, entry: RegionEntry) -> list[Effect]:
        """A region of an instance was committed: copy it to another node too, if replication is on."""
        to = self._replica_target() if self._config.replicate else None
        if to is None or not entry.request.key or self.outgoing.is_busy(entry.request.key, to):
            return []  # a job that runs finds what was committed meanwhile
        ours: Callable[[RegionEntry], bool] = lambda one: one.writer.role == "instance"  # noqa: E731
        return self.outgoing.start(entry.request.key, to, Priority.CHECKPOINT, ours, lambda tokens, detail: [])

    def search_peers(self, asker: Address, find: FindRegions, answer: SearchDone) -> list[Effect]:
        """Ask the other nodes for a request unknown here, then `answer`; at once if there is no other node."""
        if not self._registered:
            return answer()
        self._numbers += 1
        search = self._searches[self._numbers] = PeerSearch(asker, find, answer, dict(self._registered))
        effects: list[Effect] = [After(self._config.search_timeout_s, SearchDue(self._numbers))]
        for peer in search.waiting:
            message: Message = RequestCopies(self._numbers, find) if peer in self._peers else DialPeer(peer)
            effects.append(Send(peer if peer in self._peers else DIALING, message))
        return effects

    def _replica_target(self) -> Address | None:
        """The next kvstore after this one, in the order of names, round the end."""
        others = sorted(self._registered)
        after = [other for other in others if other.name > self._address.name]
        return (after or others)[0] if others else None

    @handles
    def _on_drop(self, now_s: float, sender: Address, message: DropCopies) -> list[Effect]:
        for entry in self._catalog.entries_of_key(message.key):
            if entry.writer == sender and entry.state is RegionState.COMMITTED:
                self._catalog.release(sender, entry.host.handle, entry.host.generation)
        return []

    @handles
    def _on_request_copies(self, now_s: float, sender: Address, message: RequestCopies) -> list[Effect]:
        def over(tokens: int, detail: str) -> list[Effect]:
            return [Send(sender, CopiesSent(message.ticket, tokens))]

        def choose(entry: RegionEntry) -> bool:
            return may_claim(entry, message.find)

        return self.outgoing.start(message.find.key, sender, Priority.KV, choose, over)

    @handles
    def _on_copies_sent(self, now_s: float, sender: Address, message: CopiesSent) -> list[Effect]:
        return self._answered(message.ticket, sender)

    @handles
    def _on_search_due(self, now_s: float, sender: Address, message: SearchDue) -> list[Effect]:
        return self._finish_search(message.search)

    def _answered(self, number: int, peer: Address) -> list[Effect]:
        search = self._searches.get(number)
        if search is None or peer not in search.waiting:
            return []
        del search.waiting[peer]
        return [] if search.waiting else self._finish_search(number)

    def _finish_search(self, number: int) -> list[Effect]:
        search = self._searches.pop(number, None)
        return search.done() if search is not None else []

    def _from_peers(self, do: Handler) -> Handler:
        """The registered kvstores with a stream."""
        return lambda now_s, sender, message: do(now_s, sender, message) if sender in self._peers else []
