"""Detects an instance without progress: by its reported counters, not by the duration of a step.

Knows reports and the time; not what follows from a suspicion.
"""

from dunlin.cores.gap_limit import GapLimit
from dunlin.messages.fleet import InstanceReport
from dunlin.messages.types import Figure, RejectedOption, Why
from services.monitor.config import LivenessConfig

_GAPS = 2.5
"""Longest gaps between two reports that make a silence."""
MOST_KEPT = 4096
"""Names of instances that are gone of which the gaps are kept."""


class KeptGaps:
    """The gaps between the reports of instances that are gone, by name, for the next incarnation of each."""

    def __init__(self, config: LivenessConfig) -> None:
        self._config = config
        self._gaps: dict[str, GapLimit] = {}

    def keep(self, name: str, gaps: GapLimit) -> None:
        """An instance that began with `take` is gone; beyond `MOST_KEPT` names the one that went first is forgotten."""
        self._gaps[name] = gaps
        if len(self._gaps) > MOST_KEPT:
            del self._gaps[next(iter(self._gaps))]

    def take(self, now_s: float, name: str) -> GapLimit:
        """What is expected of the next incarnation: the gaps of the last one, where it went lately."""
        gaps = self._gaps.pop(name, None)
        if gaps is None:
            return GapLimit(self._config.least_silent_s, self._config.silent_s, _GAPS)
        gaps.succeed(now_s)
        return gaps

    def forget(self) -> None:
        """The monitor did not check for a while: of what is to come nothing is known."""
        self._gaps.clear()


class InstanceWatchdog:
    """The last progress of one instance, and its suspicion.

    `why` is None as long as there never was a suspicion; later it says why the instance is suspect, or trusted again.
    """

    def __init__(self, now_s: float, config: LivenessConfig, gaps: GapLimit) -> None:
        self.gaps = gaps
        self.last_report_s = now_s
        self.suspect = False
        self.why: Why | None = None
        self._config = config
        self._progress_s = now_s
        self._outstanding = 0
        self._mark = (0, 0, 0)

    def observe(self, now_s: float, report: InstanceReport) -> None:
        """Take a report. No work outstanding, work just begun, a safepoint or a step more: each is progress."""
        mark = (report.safepoints, report.steps_total, report.engine_pid)
        if mark != self._mark or not report.outstanding_steps or not self._outstanding:
            self._progress_s = now_s
        self.gaps.note(now_s, now_s - self.last_report_s)
        self.last_report_s = now_s
        self._mark = mark
        self._outstanding = report.outstanding_steps

    def restart_clocks(self, now_s: float) -> None:
        """The monitor did not check for a while: count anew, gaps too. A suspicion stays until there is progress."""
        self.gaps.forget()
        if not self.suspect:
            self.last_report_s = self._progress_s = now_s

    def update_suspicion(self, now_s: float) -> bool:
        """Whether the suspicion changed at this time; then `suspect` and `why` are new."""
        silent_s = now_s - self.last_report_s
        stuck_s = now_s - self._progress_s if self._outstanding else 0.0
        silent_limit_s = self.gaps.limit_s(now_s)
        is_silent, is_stuck = silent_s >= silent_limit_s, stuck_s >= self._config.stuck_s
        if (is_silent or is_stuck) == self.suspect:
            return False
        self.suspect = not self.suspect
        if is_silent:
            self.why = _silence_reason(silent_s, silent_limit_s)
        elif is_stuck:
            self.why = self._stuck_reason(stuck_s)
        else:
            self.why = Why("progress", "trust", (Figure("safepoints", self._mark[0]), Figure("steps", self._mark[1])))
        return True

    def _stuck_reason(self, stuck_s: float) -> Why:
        figures = (
            Figure("unchanged_s", stuck_s),
            Figure("limit_s", self._config.stuck_s),
            Figure("outstanding_steps", self._outstanding),
            Figure("safepoints", self._mark[0]),
        )
        return Why(
            "progress",
            "suspect",
            figures,
            (RejectedOption("trust", "work is outstanding and no safepoint was passed"),),
        )


def _silence_reason(silent_s: float, limit_s: float) -> Why:
    figures = (Figure("silent_s", silent_s), Figure("limit_s", limit_s))
    return Why("silence", "suspect", figures, (RejectedOption("trust", "no report came"),))
