"""Whose turn an engine's next step is: its group's, or the instance's own requests'. Knows no step's content."""


class OwnTurns:
    """Owns when the last step of the group ended, and what it took. While the instance has steps of its own, the next
    one of the group waits for `share` of that: a step of a group is long, those of decode rows are short, and every one
    of their tokens would wait for one.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._began_s = self._ended_s = self._took_s = 0.0
        self._is_running = False

    def begin(self, now_s: float) -> None:
        """A step of the group was sent."""
        self._began_s, self._is_running = now_s, True

    def note(self, now_s: float, is_running: bool) -> None:
        """Whether one is in the engine still."""
        if self._is_running and not is_running:
            self._ended_s, self._took_s, self._is_running = now_s, now_s - self._began_s, False

    def forget(self) -> None:
        """The group is another one, or the engine is: the next step waits for nothing that the last one took."""
        self._took_s, self._is_running = 0.0, False

    def is_own(self, now_s: float, own_steps: int) -> bool:
        """Whether the group's next step waits, with so many own steps in the engine. When one of those is answered it
        is asked again; without any nothing waits.
        """
        return own_steps > 0 and now_s < self._ended_s + self._share * self._took_s
