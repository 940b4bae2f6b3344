"""What an engine's runner shares with the other ranks of the engine, so that all do the same at the same pieces."""

from collections.abc import Sequence
from typing import Any, Protocol


class Lockstep(Protocol):
    """A turn is one call of `StepRunner.work`; its safepoints are passed one by one. `is_alone`: one rank is all."""

    is_alone: bool

    def begin_turn(self, landed: Sequence[Any]) -> None:
        """A turn begins, after the events `landed` of transfers."""
        ...

    def passed(self, pause: bool) -> bool:
        """A safepoint is reached, and the turn ends here if it is to `pause`; returns that."""
        ...

    def end_turn(self) -> None:
        """The turn is over."""
        ...

    def agree(self, wanted: bool) -> bool:
        """Whether all do what rank 0 has `wanted`: of a choice that depends on more than what all know."""
        ...


class Alone:
    """There is no other rank."""

    is_alone = True

    def begin_turn(self, landed: Sequence[Any]) -> None:
        pass

    def passed(self, pause: bool) -> bool:
        return pause

    def end_turn(self) -> None:
        pass

    def agree(self, wanted: bool) -> bool:
        return wanted


ALONE = Alone()
