"""Steps with peers that were suspended whole: each where it stands, until it is resumed or discarded.

The pipes to its peers stay as they are, so it matters to no member how far the others had come. Only where another
step needs the same rooms, what has arrived is taken out of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.engine.execution.running_step import RunningStep
from dunlin.engine.execution.step_batch import StepError
from dunlin.engine.execution.step_queue import QueuedStep


@dataclass(slots=True)
class ParkedStep:
    """A step that was composed for `layout`: one that had begun, or one that was still queued. `after`: the transfers
    that it waits for.
    """

    step: RunningStep | QueuedStep
    layout: int
    after: Sequence[int] = ()

    @property
    def running(self) -> RunningStep | None:
        """The step, if it had begun."""
        return self.step if isinstance(self.step, RunningStep) else None

    @property
    def sequences(self) -> list[int]:
        """Those of the rows that have not left."""
        if isinstance(self.step, QueuedStep):
            return self.step.sequences
        return [row.sequence for row in self.step.rows.values()]

    @property
    def size_bytes(self) -> int:
        """Of what was computed in it."""
        return 0 if isinstance(self.step, QueuedStep) else self.step.size_bytes


class ParkedSteps:
    """Owns the suspended steps by number. One that a queued step is to resume is still here until that begins."""

    def __init__(self, steps_max: int, bytes_max: int) -> None:
        self._steps_max = steps_max
        self._bytes_max = bytes_max
        self._steps: dict[int, ParkedStep] = {}
        self._claimed: set[int] = set()

    def __len__(self) -> int:
        return len(self._steps)

    def __contains__(self, sequence: int) -> bool:
        """Whether a row of the sequence is in one of them."""
        return any(sequence in parked.sequences for parked in self._steps.values())

    def park(self, parked: ParkedStep) -> bool:
        """Keep a step that is suspended; False: there is no room for it."""
        size_bytes = sum(each.size_bytes for each in (parked, *self._steps.values()))
        if len(self._steps) >= self._steps_max or size_bytes > self._bytes_max:
            return False
        self._steps[parked.step.number] = parked
        return True

    def rename(self, resume: QueuedStep) -> None:
        """A step that was to go on with one is suspended before it began: that one is parked under its number."""
        parked = self._steps.pop(resume.parked)
        self._claimed.discard(resume.parked)
        if isinstance(parked.step, QueuedStep):
            parked.step = parked.step.resumed_by(resume)
        else:
            parked.step.remove((), resume.left)
            parked.step.number = resume.number
        parked.after = resume.after
        self._steps[resume.number] = parked

    def claim(self, number: int) -> ParkedStep:
        """Let a step that is queued now go on with it. :raises StepError: it is not parked, or another one has it."""
        if number not in self._steps or number in self._claimed:
            raise StepError(f"step {number} is not parked")
        self._claimed.add(number)
        return self._steps[number]

    def unclaim(self, number: int) -> None:
        """The step that was to go on with it could not."""
        self._claimed.discard(number)

    def take(self, number: int) -> ParkedStep:
        """It goes on now: remove and return it."""
        self._claimed.discard(number)
        return self._steps.pop(number)

    def remove(self, number: int) -> ParkedStep | None:
        """Forget one that no queued step is to resume; None if there is none."""
        return None if number in self._claimed else self._steps.pop(number, None)

    def make_way(self, rooms: Sequence[int]) -> None:
        """Another step opens these own rooms."""
        for running in [parked.running for parked in self._steps.values() if parked.running is not None]:
            for link, room in enumerate(running.own_rooms):
                if room in rooms:
                    running.set_aside(link)

    def close(self, sequence: int) -> None:
        """The sequence is closed: its rows leave, and what needs them at peers ends."""
        for parked in self._steps.values():
            if parked.running is not None:
                parked.running.drop(sequence)
