"""A rank that is not the first: it takes in what rank 0 has taken in, works when rank 0 works, and answers nothing."""

from collections.abc import Callable
from dataclasses import replace

import torch

from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.ranks.frames import RankReceiver
from dunlin.engine.ranks.pace import FollowingPace
from dunlin.messages.engine import Open, TransferDone


@torch.inference_mode()
def follow(runner: EngineRunner, receiver: RankReceiver, pace: FollowingPace, beat: Callable[[], object]) -> None:
    """Do as rank 0 does, for ever.

    :raises EOFError: rank 0 has ended.
    """

    def safepoint() -> bool:
        beat()
        return pace.passed()

    for told in receiver.receive():
        if told is None:
            runner.steps.work(safepoint)
        elif isinstance(told, TransferDone):
            runner.land_as(told)
        elif isinstance(told, Open):  # rank 0 chooses the tokens: what a grammar allows is its concern
            runner.receive(replace(told, sampling=replace(told.sampling, grammar=None)))
        else:
            runner.receive(told)
