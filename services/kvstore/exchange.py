"""This kvstore among those of other nodes: what it sends there, takes from there, and looks for there.

Routes to the two directions; decides who gets a second copy, and whom to ask for a request that nobody here knows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dunlin.effects import Address, After, Effect, Handler, Message, Send
from dunlin.handlers import handlers_of, handles
from dunlin.messages.declare import declaration_of
from dunlin.messages.exchange import DropCopies, Offer, Seek, Sought, TransferAgent
from dunlin.messages.group import Reach
from dunlin.messages.membership import Member
from dunlin.messages.pool import FindRegions, RegionsSent, SendRegions
from dunlin.messages.types import Priority, Why
from services.kvstore.carriage import TRANSPORT, Forget
from services.kvstore.catalog import Catalog, Entry, State, may_claim
from services.kvstore.config import ExchangeConfig
from services.kvstore.incoming import Incoming
from services.kvstore.outgoing import DIALING, Outgoing

Answer = Callable[[], list[Effect]]


@dataclass(frozen=True, slots=True)
class SearchDue:
    """The other nodes had their time to answer."""

    search: int


@dataclass(slots=True)
class Search:
    """Which instance asked, who has not answered yet, and what to do when all have."""

    asker: Address
    find: FindRegions
    answer: Answer
    waiting: dict[Address, None] = field(default_factory=dict)


class Exchange:
    """Owns the known kvstores of other nodes and the searches under way."""

    def __init__(
        self,
        address: Address,
        node: str,
        agent: TransferAgent | None,
        config: ExchangeConfig,
        catalog: Catalog,
        why_not: Callable[[Offer], Why | None],
    ) -> None:
        self.outgoing = Outgoing(catalog, config.stall_timeout_s, config.max_jobs, agent)
        self.incoming = Incoming(catalog, why_not)
        self._address = address
        self._node = node
        self._has_agent = agent is not None
        self._config = config
        self._catalog = catalog
        self._known: dict[Address, None] = {}
        self._peers: dict[Address, None] = {}
        self._searches: dict[int, Search] = {}
        self._numbers = 0

    @property
    def handlers(self) -> dict[type[Any], Handler]:
        """What peers say on the wire, if they are joined; and what this side's own carrier and timers say."""
        table = handlers_of(self, self.outgoing, self.incoming)
        return {kind: self._from_peers(do) if declaration_of(kind) else do for kind, do in table.items()}

    def learn(self, member: Member) -> None:
        """A kvstore of another node is registered."""
        if member.address.role == "kvstore" and member.node != self._node:
            self._known[member.address] = None

    def known(self) -> list[Address]:
        """The kvstores of other nodes that are registered."""
        return list(self._known)

    def forget(self, address: Address) -> None:
        """It is not any more."""
        self._known.pop(address, None)

    def joined(self, peer: Address) -> list[Effect]:
        """A stream to another kvstore is open."""
        self._peers[peer] = None
        effects = self.outgoing.joined(peer)
        for number, search in self._searches.items():
            if peer in search.waiting:
                effects.append(Send(peer, Seek(number, search.find)))
        return effects

    def gone(self, peer: Address) -> list[Effect]:
        """It ended."""
        self._peers.pop(peer, None)
        effects = [*self.outgoing.gone(peer), *self.incoming.gone(peer)]
        if self._has_agent:
            effects.append(Send(TRANSPORT, Forget(peer)))
        for number in list(self._searches):
            effects += self._heard(number, peer)
        return effects

    def withdraw(self, asker: Address) -> list[Effect]:
        """An instance's stream ended: it takes no answer any more, also if it is back. What comes is the next one's."""
        self._searches = {number: one for number, one in self._searches.items() if one.asker != asker}
        return []

    def send(self, now_s: float, asker: Address, message: SendRegions) -> list[Effect]:
        """Copy the asker's regions of a request to another kvstore."""

        def over(tokens: int, detail: str) -> list[Effect]:
            return [Send(asker, RegionsSent(message.ticket, tokens, detail))]

        mine: Callable[[Entry], bool] = lambda entry: entry.writer == asker  # noqa: E731
        return self.outgoing.start(message.key, message.to, message.priority, mine, over)

    def committed(self, entry: Entry) -> list[Effect]:
        """One more region of an instance here: have a second copy of it on another node, where that is wanted."""
        to = self._second() if self._config.replicate else None
        if to is None or not entry.asked.key or self.outgoing.is_busy(entry.asked.key, to):
            return []  # a job that runs finds what was committed meanwhile
        ours: Callable[[Entry], bool] = lambda one: one.writer.role == "instance"  # noqa: E731
        return self.outgoing.start(entry.asked.key, to, Priority.CHECKPOINT, ours, lambda tokens, detail: [])

    def search(self, asker: Address, find: FindRegions, answer: Answer) -> list[Effect]:
        """Ask the other nodes for what nobody here has, then `answer`; at once when there is nobody to ask."""
        if not self._known:
            return answer()
        self._numbers += 1
        search = self._searches[self._numbers] = Search(asker, find, answer, dict(self._known))
        effects: list[Effect] = [After(self._config.search_timeout_s, SearchDue(self._numbers))]
        for peer in search.waiting:
            message: Message = Seek(self._numbers, find) if peer in self._peers else Reach(peer)
            effects.append(Send(peer if peer in self._peers else DIALING, message))
        return effects

    def _second(self) -> Address | None:
        """The next kvstore after this one, in the order of names, round the end."""
        others = sorted(self._known)
        after = [other for other in others if other.name > self._address.name]
        return (after or others)[0] if others else None

    @handles
    def _on_drop(self, now_s: float, sender: Address, message: DropCopies) -> list[Effect]:
        for entry in self._catalog.entries_of_key(message.key):
            if entry.writer == sender and entry.state is State.COMMITTED:
                self._catalog.release(sender, entry.host.handle, entry.host.generation)
        return []

    @handles
    def _on_seek(self, now_s: float, sender: Address, message: Seek) -> list[Effect]:
        def over(tokens: int, detail: str) -> list[Effect]:
            return [Send(sender, Sought(message.ticket, tokens))]

        def choose(entry: Entry) -> bool:
            return may_claim(entry, message.find)

        return self.outgoing.start(message.find.key, sender, Priority.KV, choose, over)

    @handles
    def _on_sought(self, now_s: float, sender: Address, message: Sought) -> list[Effect]:
        return self._heard(message.ticket, sender)

    @handles
    def _on_search_due(self, now_s: float, sender: Address, message: SearchDue) -> list[Effect]:
        return self._over(message.search)

    def _heard(self, number: int, peer: Address) -> list[Effect]:
        search = self._searches.get(number)
        if search is None or peer not in search.waiting:
            return []
        del search.waiting[peer]
        return [] if search.waiting else self._over(number)

    def _over(self, number: int) -> list[Effect]:
        search = self._searches.pop(number, None)
        return search.answer() if search is not None else []

    def _from_peers(self, do: Handler) -> Handler:
        """Only with those that are joined."""
        return lambda now_s, sender, message: do(now_s, sender, message) if sender in self._peers else []
