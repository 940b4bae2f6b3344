"""Starts a step behind one whose tokens were not read yet: a device goes on with it, and the host reads meanwhile.

Decode rows find their tokens on the device; all other tokens the host knows. A step of decode rows alone is launched
whole. Any other is started only, where launches are asynchronous: its pieces are launched one by one as ever, so that
its rows may leave, and the step before is answered between two of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dunlin.engine.device.pacing import LaunchMark, Pacer
from dunlin.engine.execution.running_step import RunningStep
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.engine.execution.step_batch import EngineShape, StepError, is_plain, is_plain_decode
from dunlin.engine.execution.step_queue import StepQueue
from dunlin.engine.execution.step_starter import StepStarter
from dunlin.messages.engine import Step


@dataclass(frozen=True, slots=True)
class UnreadStep:
    """A step that is launched up to the choice of its tokens, which `mark` comes after."""

    step: RunningStep
    mark: LaunchMark


@dataclass(frozen=True, slots=True)
class FollowingStep:
    """A step that was started behind one that was not read. `mark`: launched after that one; None: this one is launched
    whole, too.
    """

    step: RunningStep
    mark: LaunchMark | None


class StepsAhead:
    """Takes steps out of `queue`. `sequences` are the open ones; `may_run_ahead()`: a step may be launched before the
    tokens of the one before are read.
    """

    def __init__(
        self,
        queue: StepQueue,
        starter: StepStarter,
        sequences: Mapping[int, EngineSequence],
        pacer: Pacer,
        may_run_ahead: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._starter = starter
        self._sequences = sequences
        self._pacer = pacer
        self._may_run_ahead = may_run_ahead

    @property
    def may_come(self) -> bool:
        """Whether the next step is not there yet, and could be launched ahead if it were."""
        return not len(self._queue) and self._may_run_ahead()

    def start_behind(self, running: RunningStep, shape: EngineShape) -> FollowingStep | None:
        """The next step behind `running`, whose tokens are chosen or being chosen; None: it is not there, or has to
        wait until they are read.
        """
        queued = self._queue.first
        if queued is None or not self._may_run_ahead():
            return None
        step = queued.step
        if step is None or queued.left or not is_plain(step, shape):
            return None
        unread = self._unread_rows(step)
        tokens = None if unread is None else running.next_tokens(unread)
        if tokens is None:
            return None
        is_whole = is_plain_decode(step) and len(tokens) == len(step.sequence)
        mark = None if is_whole else self._pacer.mark()
        if mark is None and not is_whole:
            return None
        self._queue.remove(queued)
        try:
            return FollowingStep(self._starter.start(queued, step, frozenset(), tokens), mark)
        except StepError:  # it is answered in its turn
            self._queue.put_first(queued)
            return None

    def _unread_rows(self, step: Step) -> list[tuple[int, int]] | None:
        """(sequence, position) of the tokens that rows of the step compute and the host does not know; None: one of
        them is not its row's only one.
        """
        found = []
        for sequence, start, stop in zip(step.sequence, step.start, step.stop, strict=True):
            state = self._sequences.get(sequence)
            if state is None or state.ended or stop <= len(state.tokens):
                continue
            if stop - start > 1:
                return None
            found.append((sequence, start))
        return found
