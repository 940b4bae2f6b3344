"""Steps that wait for their turn. Knows neither sequences nor tensors."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from dunlin.messages.engine import Step, StepDone
from dunlin.messages.types import f32, i8, i32, i64


@dataclass(slots=True)
class QueuedStep:
    """A `Step`, checked, or the step that a `Resume` asked for (`step` is None).

    `sequences` are those whose rows are still in it, in order; `left` those whose rows left. `after` names the
    transfers that must have landed. `extents[i]` are the (start, length) of row i of the step.
    `is_serving`: it computes attention for peers. `parked`: it goes on with the suspended step of this number (0: it
    does not). `told`: those of `left` that another answer named.
    """

    number: int
    sequences: list[int]
    after: Sequence[int]
    step: Step | None = None
    extents: list[list[tuple[int, int]]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    is_serving: bool = False
    parked: int = 0
    told: list[int] = field(default_factory=list)

    @property
    def has_peers(self) -> bool:
        """Whether members of a group step together with it."""
        return self.parked > 0 or (self.step is not None and len(self.step.peers) > 0)

    @property
    def untold(self) -> list[int]:
        """The sequences whose rows left since its last answer."""
        return [each for each in self.left if each not in self.told]

    def answer_suspended(self) -> StepDone:
        """Its answer when it is suspended: all its rows have left it, and come back in the next."""
        answer = StepDone(self.number, i64(), i32(), f32(), i8(), left=i64([*self.untold, *self.sequences]))
        self.told = list(self.left)
        return answer

    def resumed_by(self, resume: "QueuedStep") -> "QueuedStep":
        """It was suspended, and is the step of a `Resume` now."""
        left = [*self.left, *resume.left]
        kept = [each for each in self.sequences if each not in left]
        return replace(self, number=resume.number, sequences=kept, after=resume.after, left=left)

    def forget(self, named: AbstractSet[int] | None) -> list[int]:
        """Take the rows of the `named` sequences out (None: of all, and serve no peer); returns their sequences."""
        self.is_serving = self.is_serving and named is not None
        leaving = [each for each in self.sequences if named is None or each in named]
        if leaving:
            self.sequences = [each for each in self.sequences if named is not None and each not in named]
            self.left += leaving
        return leaving


class StepQueue:
    """Owns the queued steps, in order of arrival. `is_landing(transfer)`: it has not been answered yet."""

    def __init__(self, is_landing: Callable[[int], bool]) -> None:
        self._steps: deque[QueuedStep] = deque()
        self._is_landing = is_landing

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[QueuedStep]:
        return iter(self._steps)

    def append(self, step: QueuedStep) -> None:
        self._steps.append(step)

    @property
    def first(self) -> QueuedStep | None:
        """The one that came first."""
        return self._steps[0] if self._steps else None

    def put_first(self, step: QueuedStep) -> None:
        """Back to where it was taken from."""
        self._steps.appendleft(step)

    def pop_ready(self) -> QueuedStep | None:
        """The first step that waits for no transfer and shares no sequence with one before it that has to wait."""
        held: set[int] = set()
        for at, step in enumerate(self._steps):
            if any(self._is_landing(transfer) for transfer in step.after) or not held.isdisjoint(step.sequences):
                held.update(step.sequences)
            else:
                del self._steps[at]
                return step
        return None

    def pop_empty(self) -> list[QueuedStep]:
        """The steps of which every row has left, and which serve no peer, in order."""
        empty = [step for step in self._steps if not step.sequences and not step.is_serving]
        if empty:
            self._steps = deque(step for step in self._steps if step.sequences or step.is_serving)
        return empty

    def with_peers(self, number: int) -> QueuedStep | None:
        """The step of that number; None if there is none, or it has no peers."""
        return next((each for each in self._steps if each.number == number and each.has_peers), None)

    def remove(self, step: QueuedStep) -> None:
        """Take a step out."""
        self._steps.remove(step)
