"""When a service reports to its monitors: when one joins, as a heartbeat and, where wanted, soon after a change.

Used by every core that reports. Knows no field of any report.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Message, Send


@dataclass(frozen=True, slots=True)
class ReportDue:
    """Time for the next report, unless a newer timer runs."""

    counter: int


class Heartbeat:
    """A report to each monitor that joins, and to all of them every `interval_s` seconds.

    Owns the joined monitors and the timer of the next report: one runs at a time. `report` makes the report.
    """

    def __init__(self, report: Callable[[], Message], interval_s: float) -> None:
        self._report = report
        self._interval_s = interval_s
        self._monitors: dict[Address, None] = {}
        self._counter = 0

    def joined(self, now_s: float, monitor: Address) -> list[Effect]:
        """A stream to a monitor is open: it gets a report now, and the heartbeat starts over."""
        self._monitors[monitor] = None
        return [Send(monitor, self._report()), self._next(now_s)]

    def gone(self, peer: Address) -> None:
        """A stream ended, to a monitor or to another peer."""
        self._monitors.pop(peer, None)

    @handles
    def due(self, now_s: float, sender: Address, message: ReportDue) -> list[Effect]:
        """The timer fired."""
        return self.report_now(now_s) if message.counter == self._counter else []

    def report_now(self, now_s: float) -> list[Effect]:
        """Report to every monitor, and start the heartbeat over. Without a monitor the heartbeat stops."""
        sent = self.sends()
        return [*sent, self._next(now_s)] if sent else []

    def sends(self) -> list[Effect]:
        """A report to every monitor; the heartbeat goes on as before."""
        if not self._monitors:
            return []
        report = self._report()
        return [Send(monitor, report) for monitor in self._monitors]

    def _next(self, now_s: float) -> After:
        return self._timer(self._interval_s)

    def _timer(self, delay_s: float) -> After:
        self._counter += 1
        return After(delay_s, ReportDue(self._counter))


class PromptHeartbeat(Heartbeat):
    """A heartbeat that also reports `after_change_s` seconds after a change that the core announces."""

    def __init__(self, report: Callable[[], Message], interval_s: float, after_change_s: float) -> None:
        super().__init__(report, interval_s)
        self._after_change_s = after_change_s
        self._due_s: float | None = None  # when the newest timer fires

    def joined(self, now_s: float, monitor: Address) -> list[Effect]:
        """A stream to a monitor is open: all get a report now, for a change that the others wait for is in it."""
        self._monitors[monitor] = None
        return self.report_now(now_s)

    def changed(self, now_s: float) -> list[Effect]:
        """Something that the monitors should know changed: report soon, unless a report is due sooner."""
        due_s = now_s + self._after_change_s
        return [self._at(now_s, due_s)] if self._due_s is None or due_s < self._due_s else []

    def _next(self, now_s: float) -> After:
        return self._at(now_s, now_s + self._interval_s)

    def _at(self, now_s: float, due_s: float) -> After:
        self._due_s = due_s
        return self._timer(due_s - now_s)
