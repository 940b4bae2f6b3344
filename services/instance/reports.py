"""When an instance reports: soon after a change, and as a heartbeat. What it says is the core's."""

from dataclasses import dataclass

from dunlin.effects import After, Effect


@dataclass(frozen=True, slots=True)
class ReportDue:
    """Time to report, unless a newer timer runs."""

    counter: int


class Reporter:
    """Owns the timer: one runs at a time."""

    def __init__(self, interval_s: float, after_change_s: float) -> None:
        self._interval_s = interval_s
        self._after_change_s = after_change_s
        self._due_s = float("inf")
        self._counter = 0

    def changed(self, now_s: float) -> list[Effect]:
        """Something that others should know changed: report soon."""
        return self._by(now_s, now_s + self._after_change_s)

    def reported(self, now_s: float) -> list[Effect]:
        """A report went out: the next one is a heartbeat."""
        self._due_s = float("inf")
        return self._by(now_s, now_s + self._interval_s)

    def is_due(self, message: ReportDue) -> bool:
        """Whether this is the newest timer."""
        return message.counter == self._counter

    def _by(self, now_s: float, due_s: float) -> list[Effect]:
        if due_s >= self._due_s:
            return []
        self._due_s = due_s
        self._counter += 1
        return [After(due_s - now_s, ReportDue(self._counter))]
