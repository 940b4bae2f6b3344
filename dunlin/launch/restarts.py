"""When a dead process is started again: pure, so that its patience can be tested without waiting."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Start again after 1, 2, 4 … `longest_delay_s`; give up at more than `limit` deaths within `window_s`.

    A process that lived for `calm_s` starts again as if it had never died.
    """

    first_delay_s: float = 1.0
    longest_delay_s: float = 10.0
    limit: int = 10
    window_s: float = 60.0
    calm_s: float = 15.0


class Restarts:
    """The deaths of one process. Times are seconds on any clock that never goes backwards."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths: deque[float] = deque()
        self._delay_s = policy.first_delay_s
        self.total = 0

    def died(self, now_s: float, lived_s: float) -> float | None:
        """Note a death after `lived_s` of life: seconds to wait before the next start, or None to give up."""
        policy = self._policy
        self.total += 1
        self._deaths.append(now_s)
        while self._deaths[0] < now_s - policy.window_s:
            self._deaths.popleft()
        if len(self._deaths) > policy.limit:
            return None
        if lived_s >= policy.calm_s:
            self._delay_s = policy.first_delay_s
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, policy.longest_delay_s)
        return delay_s
