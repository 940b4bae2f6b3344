"""The links between engines: each pair of nodes shares one bandwidth fairly among the copies under way.

Within a node the link is the copy bandwidth of its memory. Knows nodes and bytes, and neither regions nor slots.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

Later = Callable[[float, Callable[[float], None]], None]


@dataclass(slots=True)
class Copying:
    """A copy under way: `left_bytes` of it at the link's `since_s`; `arrived(now_s)` is called at its end."""

    left_bytes: float
    arrived: Callable[[float], None]


@dataclass(slots=True)
class _Link:
    """The copies between two nodes; `turn` counts changes of their shares."""

    copies: list[Copying] = field(default_factory=list)
    since_s: float = 0.0
    turn: int = 0


class PeerLinks:
    """Copies bytes between nodes. `later(delay_s, call)` calls `call(now_s)` after `delay_s` seconds.

    `node_bytes_per_s` is the bandwidth within a node, `link_bytes_per_s` that between two, each for all copies of one
    direction; 0: without limit.
    """

    def __init__(self, node_bytes_per_s: float, link_bytes_per_s: float, later: Later) -> None:
        self.carried_bytes = 0.0
        self._node_bytes_per_s = node_bytes_per_s
        self._link_bytes_per_s = link_bytes_per_s
        self._later = later
        self._links: dict[tuple[str, str], _Link] = {}

    def copy(
        self, now_s: float, here: str, there: str, byte_count: int, arrived: Callable[[float], None]
    ) -> Callable[[float], None]:
        """Call `arrived(now_s)` when the bytes arrived; returns a function of the time that stops the copy before."""
        pair = (here, there)
        link = self._links.setdefault(pair, _Link())
        self._settle(now_s, pair, link)
        copying = Copying(float(byte_count), arrived)
        link.copies.append(copying)
        self._wait(pair, link)
        return lambda at_s: self._stop(at_s, pair, link, copying)

    def _stop(self, now_s: float, pair: tuple[str, str], link: _Link, copying: Copying) -> None:
        self._settle(now_s, pair, link)
        link.copies = [each for each in link.copies if each is not copying]
        self._wait(pair, link)

    def _rate(self, pair: tuple[str, str]) -> float:
        return self._node_bytes_per_s if pair[0] == pair[1] else self._link_bytes_per_s

    def _settle(self, now_s: float, pair: tuple[str, str], link: _Link) -> None:
        """Take off what was carried since the shares last changed."""
        carried = (now_s - link.since_s) * self._rate(pair)
        for each in link.copies:
            part = min(each.left_bytes, carried / len(link.copies))
            each.left_bytes -= part
            self.carried_bytes += part
        link.since_s = now_s

    def _wait(self, pair: tuple[str, str], link: _Link) -> None:
        """Wait for the copy that ends first, if the shares stay as they are."""
        link.turn += 1
        if not link.copies:
            return
        turn, rate = link.turn, self._rate(pair)
        first = min(link.copies, key=lambda each: each.left_bytes)
        delay_s = first.left_bytes * len(link.copies) / rate if rate else 0.0

        def due(now_s: float) -> None:
            if link.turn != turn:
                return
            self._settle(now_s, pair, link)
            link.copies = [each for each in link.copies if each is not first]
            self._wait(pair, link)
            first.arrived(now_s)

        self._later(delay_s, due)
