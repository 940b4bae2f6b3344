"""A rank that is not the first: it takes in what rank 0 has taken in, works when rank 0 works, and answers nothing."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dunlin.engine.device.pacing import HOST_PACER, Pacer
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.ranks.frames import RankReceiver
from dunlin.engine.ranks.pace import FollowingPace
from dunlin.engine.ranks.part_copies import PartCopy
from dunlin.messages.engine import Open, TransferDone


class RankFollower:
    """See `Lockstep`: does as rank 0 does. `copy` copies this rank's part of KV; None: rank 0 reaches it itself."""

    is_alone = False

    def __init__(
        self, receiver: RankReceiver, pace: FollowingPace, copy: Callable[[PartCopy], None] | None = None
    ) -> None:
        self._receiver = receiver
        self._pace = pace
        self._copy = copy

    def begin_turn(self, landed: Sequence[Any]) -> None:
        pass

    def passed(self, pause: bool) -> bool:
        return self._pace.passed(self._copy_told)

    def end_turn(self) -> None:
        pass

    def agree(self, wanted: bool) -> bool:
        return not self.passed(not wanted)

    @torch.inference_mode()
    def follow(self, runner: EngineRunner, beat: Callable[[], object], pacer: Pacer = HOST_PACER) -> None:
        """Do as rank 0 does, for ever. `runner` has this as its lockstep.

        :raises EOFError: rank 0 has ended.
        """

        def safepoint() -> bool:
            beat()
            pacer.pace(runner.steps.layers_left)
            return self.passed(False)

        while True:
            told = self._receiver.next()
            if told is None:
                runner.steps.work(safepoint)
            elif isinstance(told, PartCopy):
                self._copy_part(told)
            elif isinstance(told, TransferDone):
                runner.land_as(told)
            elif isinstance(told, Open):  # rank 0 chooses the tokens: what a grammar allows is its concern
                runner.receive(replace(told, sampling=replace(told.sampling, grammar=None)))
            else:
                runner.receive(told)

    def _copy_told(self) -> None:
        """At a safepoint nothing else is told."""
        told = self._receiver.next()
        assert isinstance(told, PartCopy), told
        self._copy_part(told)

    def _copy_part(self, told: PartCopy) -> None:
        assert self._copy is not None, "rank 0 reaches this rank's KV"
        self._copy(told)
