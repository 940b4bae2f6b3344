"""The number of compute threads: as many as there are cores for.

All threads of a parallel region wait for its last one, so a thread that waits for a core holds up all the others: two
threads beside one busy process are many times slower than one. Pure: sees CPU times, not processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds at `now_s`, all growing. `waited_s`: the own threads were ready to run and had no core; `own_s`: they
    ran; `busy_s`: any thread ran on the cores that this process may use.
    """

    now_s: float
    waited_s: float
    own_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class ThreadLimits:
    """`waited_most`: threads that wait for a core, on average, before there are fewer; the newest look counts in it by
    `newest`, those before by the rest. `spare`: the share of a core that others may use of one that still counts as
    free. More threads are tried again after `hold_s`; each time this went wrong within `trial_s` the next one comes
    twice as late, after `hold_most_s` at most.
    """

    # An engine's own cluster (dispatcher, instance, client) makes two threads wait 0.1 to 0.3, and where requests come
    # and end in waves 0.6 to 0.9 for a look or two; a busy process makes them wait 1.
    waited_most: float = 0.5
    newest: float = 0.3
    spare: float = 0.4
    hold_s: float = 0.5
    hold_most_s: float = 16.0
    trial_s: float = 3.0


class ThreadCountPolicy:
    """One of `choices`, the highest one while no other process wants the `cores`. Feed `look` a few times a second."""

    def __init__(self, choices: Sequence[int], cores: int, limits: ThreadLimits | None = None) -> None:
        self._choices = sorted(choices)
        self._cores = cores
        self._limits = limits or ThreadLimits()
        self._count = self._choices[-1]
        self._last: CpuTimes | None = None
        self._waited = 0.0
        self._raised_s = float("-inf")
        self._next_raise_s = float("-inf")
        self._hold_s = self._limits.hold_s

    def __repr__(self) -> str:
        return f"[threads: {self._count} of {self._choices}]"

    def update(self, times: CpuTimes) -> int:
        """The count from now on."""
        last, self._last = self._last, times
        if last is None or times.now_s <= last.now_s:
            return self._count
        passed_s = times.now_s - last.now_s
        newest = self._limits.newest
        self._waited += newest * ((times.waited_s - last.waited_s) / passed_s - self._waited)
        others = (times.busy_s - last.busy_s - (times.own_s - last.own_s)) / passed_s
        room = int(self._cores - others + self._limits.spare)
        if self._waited > self._limits.waited_most:
            self._lower(times.now_s, room)
        elif room > self._count and times.now_s >= self._next_raise_s:
            self._raise(times.now_s, room)
        return self._count

    def _lower(self, now_s: float, room: int) -> None:
        fewer = [choice for choice in self._choices if choice < self._count]
        if not fewer:
            return
        self._count, self._waited = self._within(room, fewer), 0.0
        failed = now_s - self._raised_s < self._limits.trial_s
        self._hold_s = min(2 * self._hold_s, self._limits.hold_most_s) if failed else self._limits.hold_s
        self._next_raise_s = now_s + self._hold_s

    def _raise(self, now_s: float, room: int) -> None:
        higher = self._within(room, self._choices)
        if higher > self._count:
            self._count, self._waited, self._raised_s = higher, 0.0, now_s

    def _within(self, room: int, choices: Sequence[int]) -> int:
        """The highest of `choices` for which there is room; the lowest if there is for none."""
        return max((choice for choice in choices if choice <= room), default=choices[0])
