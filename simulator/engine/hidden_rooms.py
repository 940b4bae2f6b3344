"""The rooms of a modelled engine's hidden states: what a step that ends before the last layer leaves for the next."""

from simulator.engine.errors import ContractBroken

Rows = frozenset[tuple[int, int, int]]
"""(sequence, start, stop) of each row."""


class SimulatedHiddenRooms:
    """The rows whose hidden states lie in each room."""

    def __init__(self) -> None:
        self.rows: dict[int, Rows] = {}

    def read(self, room: int, rows: Rows) -> None:
        """A step starts from the hidden states of `rows` in `room`.

        Raises:
            ContractBroken: they do not lie there.
        """
        missing = rows - self.rows.get(room, frozenset())
        if missing:
            raise ContractBroken(f"room {room} has no hidden states of rows {sorted(missing)}")

    def write(self, room: int, rows: Rows) -> None:
        """A step left the hidden states of `rows` in `room`."""
        self.rows[room] = rows
