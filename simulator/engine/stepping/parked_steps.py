"""The steps with peers of a modelled engine that were suspended whole, by number; bounded in number and tokens."""

from simulator.engine.stepping.step_queue import QueuedSimStep


class SimulatedParkedSteps:
    """Owns the suspended steps `by_number`: each as it would go on."""

    def __init__(self, most_steps: int, most_tokens: int) -> None:
        self._most_steps = most_steps
        self._most_tokens = most_tokens
        self.by_number: dict[int, QueuedSimStep] = {}

    def __contains__(self, sequence: int) -> bool:
        """Whether a row of the sequence is in one of them."""
        return any(sequence in queued.sequences for queued in self.by_number.values())

    def park(self, queued: QueuedSimStep) -> bool:
        """Keep a step; False: there is no room for it."""
        tokens = sum(each.row_tokens for each in (queued, *self.by_number.values()) if each.has_begun)
        if len(self.by_number) >= self._most_steps or tokens > self._most_tokens:
            return False
        self.by_number[queued.step.step] = queued
        return True

    def take(self, number: int) -> QueuedSimStep | None:
        """Remove and return a step; None if there is none of that number."""
        return self.by_number.pop(number, None)

    def close(self, sequence: int) -> list[QueuedSimStep]:
        """The sequence is closed: its rows go on no more. Returns the steps that had begun with such a row."""
        found = [each for each in self.by_number.values() if each.has_begun and sequence in each.sequences]
        for queued in found:
            queued.rows = [row for row in queued.rows if queued.step.sequence[row] != sequence]
            queued.dropped.append(sequence)
        return found
