"""A modelled engine's transit rooms: what its steps leave there for other steps, and what peers send."""

from dataclasses import dataclass, field
from zlib import crc32

from simulator.engine.errors import ContractBroken

Rows = frozenset[tuple[int, int, int]]
"""(sequence, start, stop) of each row."""


@dataclass(frozen=True, slots=True)
class RoomContent:
    """Rows whose hidden states lie in a room, and tokens that were sampled: sequence → (position, token)."""

    rows: Rows = frozenset()
    tokens: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Tokens of all rows."""
        return sum(stop - start for _, start, stop in self.rows) + len(self.tokens)

    @property
    def checksum(self) -> int:
        """Of what lies there, wherever it lies."""
        return crc32(repr((sorted(self.rows), sorted(self.tokens.items()))).encode())


class SimulatedTransitRooms:
    """What lies in each room. Read once, as the real ones."""

    def __init__(self) -> None:
        self._rooms: dict[int, RoomContent] = {}

    def content(self, room: int) -> RoomContent:
        """What lies in a room."""
        return self._rooms.get(room, RoomContent())

    def put(self, room: int, content: RoomContent) -> None:
        """A peer sent this; it takes the place of what lay there."""
        self._rooms[room] = content

    def clear(self, room: int) -> None:
        """Forget what lies in a room."""
        self._rooms.pop(room, None)

    def read(self, room: int, rows: Rows) -> None:
        """A step starts from the hidden states of `rows` in `room`.

        Raises:
            ContractBroken: they do not lie there.
        """
        held = self.content(room)
        missing = rows - held.rows
        if missing:
            raise ContractBroken(f"room {room} has no hidden states of rows {sorted(missing)}")
        self._rooms[room] = RoomContent(held.rows - rows, held.tokens)

    def write(self, room: int, rows: Rows) -> None:
        """A step left the hidden states of `rows` in `room`."""
        held = self.content(room)
        self._rooms[room] = RoomContent(held.rows | rows, held.tokens)

    def tell(self, room: int, sequence: int, position: int, token: int) -> None:
        """The last stage of a pipeline leaves a token that it sampled."""
        held = self.content(room)
        self._rooms[room] = RoomContent(held.rows, {**held.tokens, sequence: (position, token)})

    def learn(self, room: int, sequence: int) -> tuple[int, int] | None:
        """The (position, token) of the sequence in the room, which is not kept; None: there is none."""
        held = self.content(room)
        self._rooms[room] = RoomContent(held.rows, {n: each for n, each in held.tokens.items() if n != sequence})
        return held.tokens.get(sequence)

    def forget(self, sequence: int) -> None:
        """The sequence is closed."""
        for room, held in list(self._rooms.items()):
            rows = frozenset(row for row in held.rows if row[0] != sequence)
            self._rooms[room] = RoomContent(rows, {n: each for n, each in held.tokens.items() if n != sequence})
