"""How long a silence may last before it means something: by the gaps between signs of life that were usual lately."""

from math import inf

from dunlin.cores.recent_peak import RecentPeak

REMEMBERED_S = 30.0
"""Seconds of gaps that count: a machine that became busy is believed for as long."""
LONGER = 2.0
"""Times the silence that ended a process for which its successor is waited for."""
YOUNG_S = 5.0
"""Seconds of signs of a new process before it is expected to be as regular as its predecessor was."""


class GapLimit:
    """The limit of one process's silence, between two bounds: `times` the longest gap of the last `REMEMBERED_S`.

    Until gaps of so long a time are known it is the upper bound, and so it is where gaps vary much: a starved process
    is not taken for a dead one, and one whose signs come regularly is missed soon.
    """

    def __init__(self, least_s: float, most_s: float, times: float) -> None:
        self._least_s, self._most_s = min(least_s, most_s), most_s
        self._times = times
        self._longer_s = 0.0
        self._longer_until_s = -inf
        self.forget()

    def forget(self) -> None:
        """Nothing is known of the gaps any more."""
        self._longest_s: RecentPeak[float] = RecentPeak(REMEMBERED_S, 0.0)
        self._noted_s = self._began_s = -inf
        """Times of the last sign, and of the first one of this process."""

    def succeed(self, now_s: float) -> None:
        """A process takes the place of the last one: the same program on the same machine, so what was usual lately
        counts for it too, once it has given signs for `YOUNG_S`.
        """
        if now_s - self._noted_s >= REMEMBERED_S:
            self.forget()
        else:
            self._began_s = inf

    def lengthen(self, now_s: float, silence_s: float) -> None:
        """A process was ended for this silence. It may have been slow only, and its successor would be ended for the
        same: for `REMEMBERED_S` the limit is `LONGER` times that at least. One of the upper bound was a fault.
        """
        if silence_s < self._most_s:
            self._longer_s, self._longer_until_s = LONGER * silence_s, now_s + REMEMBERED_S

    def note(self, now_s: float, gap_s: float) -> None:
        """A sign of life came, `gap_s` after the one before. One above the upper bound was a fault, and is none of the
        usual ones.
        """
        if self._began_s == inf:
            self._began_s = now_s
        self._noted_s = now_s
        if gap_s < self._most_s:
            self._longest_s.note(now_s, gap_s)

    def limit_s(self, now_s: float) -> float:
        """Seconds of silence from which on it means something."""
        if not self._longest_s.is_settled(now_s) or now_s - self._began_s < YOUNG_S:
            return self._most_s
        longer_s = self._longer_s if now_s < self._longer_until_s else 0.0
        return min(self._most_s, max(self._least_s, longer_s, self._times * self._longest_s.peak(now_s)))
