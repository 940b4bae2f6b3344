"""What steps of modelled engines that compute together know of each other: which have begun, and what they told."""

from dataclasses import dataclass

from dunlin.effects import Address

Told = dict[int, dict[int, int]]
"""Sequence → position → the content of its slot."""
REMEMBERED = 4
"""Exchanges between two engines, beside those that are parked: a step of one is over before the next begins."""


@dataclass(slots=True)
class _Exchange:
    """One engine's part of an exchange with a peer: when it began (None: not yet, or not again), and what it told."""

    begun_s: float | None = None
    told: Told | None = None
    is_given_up: bool = False


class GroupMeetings:
    """The last exchanges that each engine has begun and reached with each peer, and what it told of its KV."""

    def __init__(self) -> None:
        self._exchanges: dict[tuple[Address, Address], dict[int, _Exchange]] = {}
        self._parked: set[tuple[Address, Address, int]] = set()

    def begin(self, now_s: float, engine: Address, peer: Address, exchange: int) -> bool:
        """The engine begins its step of the exchange, or goes on with it; returns whether the peer's has begun before,
        and may wait.
        """
        self._parked.discard((engine, peer, exchange))
        self._exchange(engine, peer, exchange).begun_s = now_s
        there = self._exchanges.get((peer, engine), {})
        if exchange not in there:
            return False
        there[exchange] = there.pop(exchange)  # a suspended one goes on: it is not old
        return there[exchange].begun_s is not None

    def begun_s(self, engine: Address, peer: Address, exchange: int) -> float | None:
        """When the engine began its step of the exchange with the peer; 0: it is past it; None: it has not, or the step
        is parked.
        """
        found = self._exchanges.get((engine, peer), {})
        if exchange in found and found[exchange].begun_s is not None:
            return found[exchange].begun_s
        is_past = any(number > exchange and each.begun_s is not None for number, each in found.items())
        return 0.0 if is_past and (engine, peer, exchange) not in self._parked else None

    def park(self, engine: Address, peer: Address, exchange: int) -> None:
        """The engine's step of the exchange is suspended: it tells the peer only once it has gone on."""
        self._parked.add((engine, peer, exchange))
        way = self._exchange(engine, peer, exchange)
        way.begun_s = way.told = None

    def reach(self, engine: Address, peer: Address, exchange: int, told: Told) -> None:
        """The engine's step of the exchange with the peer is through."""
        self._exchange(engine, peer, exchange).told = told

    def partners(self, engine: Address) -> list[Address]:
        """The engines whose steps have begun an exchange with the engine, and may wait for its step."""
        return [one for one, other in self._exchanges if other == engine]

    def give_up(self, engine: Address, peer: Address, exchange: int) -> None:
        """The engine's step of the exchange ended early."""
        self._parked.discard((engine, peer, exchange))
        way = self._exchange(engine, peer, exchange)
        way.told, way.is_given_up = None, True

    def is_given_up(self, engine: Address, peer: Address, exchange: int) -> bool:
        """Whether it did."""
        found = self._exchanges.get((engine, peer), {}).get(exchange)
        return found is not None and found.is_given_up

    def told(self, engine: Address, peer: Address, exchange: int) -> Told | None:
        """What the engine told the peer in the exchange; None: it has not reached it."""
        found = self._exchanges.get((engine, peer), {}).get(exchange)
        return None if found is None else found.told

    def _exchange(self, engine: Address, peer: Address, exchange: int) -> _Exchange:
        """Known from now on; the oldest are forgotten, but for those that one side has parked."""
        known = self._exchanges.setdefault((engine, peer), {})
        if exchange not in known:
            old = [
                each
                for each in known
                if (engine, peer, each) not in self._parked and (peer, engine, each) not in self._parked
            ]
            for each in old[: len(old) + 1 - REMEMBERED]:
                del known[each]
            known[exchange] = _Exchange()
        return known[exchange]
