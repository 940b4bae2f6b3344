"""Rank 0's runner: the engine's runner, which tells the other ranks all that they need to do the same."""

from collections.abc import Sequence
from typing import Any

from dunlin.engine.decoder.iteration import Safepoint
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.ranks.frames import RankSender
from dunlin.engine.ranks.pace import LeadingPace
from dunlin.engine.ranks.part_copies import PartCopy
from dunlin.messages.engine import Close, Discard, Interrupt, Open, Resume, Step, Transfer, TransferDone, Unsupported

Event = Any
SHARED = (Open, Close, Step, Interrupt, Resume, Discard, Transfer)
"""The commands that change what steps compute."""


class RankLeader:
    """See `Lockstep`."""

    is_alone = False

    def __init__(self, sender: RankSender, pace: LeadingPace) -> None:
        self._sender = sender
        self._pace = pace
        self._is_in_turn = False

    def begin_turn(self, landed: Sequence[Event]) -> None:
        self.tell_landed(landed)
        self._sender.tell_work()
        self._is_in_turn = True

    def passed(self, pause: bool) -> bool:
        return self._pace.passed(pause)

    def end_turn(self) -> None:
        self._is_in_turn = False

    def agree(self, wanted: bool) -> bool:
        """What is not wanted is a stop for a moment."""
        return not self._pace.passed(not wanted)

    def tell_copy(self, copy: PartCopy) -> None:
        """All copy at once: the others wait for what they are told, in a turn at the safepoint that is reached."""
        self._sender.tell_copy(copy)
        if self._is_in_turn:
            self._pace.copy_here()

    def tell(self, message: Any) -> None:
        """A command was taken in."""
        self._sender.tell(message)

    def tell_landed(self, events: Sequence[Event]) -> None:
        """Those of them that end a transfer."""
        for event in events:
            if isinstance(event, TransferDone):
                self._sender.tell(event)


class LeadingRunner:
    """As `EngineRunner`, with the other ranks told by `leader`, which is the runner's lockstep too."""

    def __init__(self, runner: EngineRunner, leader: RankLeader) -> None:
        self._runner = runner
        self._leader = leader

    @property
    def busy(self) -> bool:
        """Whether `work` has something to do."""
        return self._runner.busy

    @property
    def is_waiting(self) -> bool:
        """As `EngineRunner.is_waiting`."""
        return self._runner.is_waiting

    def receive(self, message: Any) -> list[Event]:
        """Take a command in; what is refused the other ranks never hear of."""
        events = self._runner.receive(message)
        if isinstance(message, SHARED) and not any(isinstance(event, Unsupported) for event in events):
            self._leader.tell(message)
        self._leader.tell_landed(events)
        return events

    def work(self, safepoint: Safepoint) -> list[Event]:
        """As `EngineRunner.work`."""
        events = self._runner.work(safepoint)
        self._leader.tell_landed(events)
        return events
