"""Turns of connections, with a clock that only parsing moves."""

from collections.abc import Callable

from services.dispatcher.doors.http.parse_turns import PARSE_BUDGET_S, ParseTurns


class Loop:
    """Callbacks for the next turn, and a clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[Callable[[], None]] = []

    def soon(self, call: Callable[[], None]) -> None:
        self._due.append(call)

    def turn(self) -> bool:
        due, self._due = self._due, []
        for call in due:
            call()
        return bool(due)


class Sender:
    """A connection with so many slices; each takes so long."""

    def __init__(self, name: str, slices: int, loop: Loop, took: list[str], each_s: float = PARSE_BUDGET_S) -> None:
        self.slices = slices
        self._name, self._loop, self._took, self._each_s = name, loop, took, each_s

    def parse_slice(self) -> bool:
        self._loop.now_s += self._each_s
        self._took.append(self._name)
        self.slices -= 1
        return self.slices > 0


def turns_of(loop: Loop) -> ParseTurns:
    return ParseTurns(loop.soon, lambda: loop.now_s)


def test_bytes_are_parsed_as_they_come_while_the_turn_has_time() -> None:
    loop, took = Loop(), list[str]()
    turns = turns_of(loop)
    for name in "abc":
        turns.add(Sender(name, 1, loop, took, each_s=PARSE_BUDGET_S / 10))
    assert took == ["a", "b", "c"]


def test_slices_of_all_connections_together_take_one_turns_time() -> None:
    loop, took = Loop(), list[str]()
    turns = turns_of(loop)
    for name in "abc":
        turns.add(Sender(name, 2, loop, took))
    assert took == ["a"]  # it took the whole turn
    assert loop.turn()
    assert took == ["a", "a"]
    while loop.turn():
        pass
    assert took == ["a", "a", "b", "c", "b", "c"]  # a connection with more to parse waits behind the others


def test_a_connection_that_is_closed_has_no_turn() -> None:
    loop, took = Loop(), list[str]()
    turns = turns_of(loop)
    turns.add(Sender("a", 1, loop, took))
    gone = Sender("b", 1, loop, took)
    turns.add(gone)
    turns.remove(gone)
    while loop.turn():
        pass
    assert took == ["a"]
