"""When a dead process is started again: pure, so that its patience can be tested without waiting."""

from dataclasses import dataclass

_MOST_DOUBLINGS = 64
"""Far beyond any longest delay: a number of deaths without end must still make a number that a float can be."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Start again at once what lived for `reset_after_s`, all else after 1, 2, 4 … `longest_delay_s`; give up after
    more than `limit` deaths in a row by its own fault.

    One that was killed is at no fault: it waits as long, but however often it is killed (by the kernel, short of
    memory, or by a user), it is started again.
    """

    first_delay_s: float = 1.0
    longest_delay_s: float = 10.0
    limit: int = 10
    reset_after_s: float = 10.0


class RestartHistory:
    """The deaths of one process."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._in_a_row = 0
        self._own_fault = 0
        self.total = 0

    def died(self, lived_s: float, killed: bool = False) -> float | None:
        """Note a death after `lived_s` of life: seconds to wait before the next start, or None to give up.

        `killed`: by a signal from outside.
        """
        policy = self._policy
        self.total += 1
        if lived_s >= policy.reset_after_s:
            self._in_a_row, self._own_fault = 0, int(not killed)
            return 0.0
        self._in_a_row += 1
        self._own_fault += not killed
        if self._own_fault > policy.limit:
            return None
        doublings = min(self._in_a_row - 1, _MOST_DOUBLINGS)
        return float(min(policy.first_delay_s * 2**doublings, policy.longest_delay_s))
