"""What an engine's runner tells the other ranks of the engine, so that they do what it does at the same pieces."""

from collections.abc import Sequence
from typing import Any, Protocol


class Lockstep(Protocol):
    """Of rank 0. A turn is one call of `StepRunner.work`; its safepoints are passed one by one."""

    def begin_turn(self, landed: Sequence[Any]) -> None:
        """A turn begins, after the events `landed` of transfers."""
        ...

    def passed(self, pause: bool) -> bool:
        """A safepoint is reached, and the turn ends here if it is to `pause`; returns that."""
        ...


class Alone:
    """There is no other rank."""

    def begin_turn(self, landed: Sequence[Any]) -> None:
        pass

    def passed(self, pause: bool) -> bool:
        return pause


ALONE = Alone()
