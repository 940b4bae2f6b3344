"""How far ranks may go: rank 0 decides at each safepoint, and the others begin no piece that it has not allowed.

So a stop is the number of a safepoint that no rank can have passed, and rank 0 asks no other before it decides. Of the
shared words each rank has two: the pieces of sums that it has written, and the last safepoint at which it stopped; and
rank 0 one more, the safepoint that may be passed. Loads no torch.
"""

from dunlin.engine.ranks.shared_words import SharedWords


def word_count(ranks: int) -> int:
    """The shared words of an engine of so many ranks."""
    return 2 * ranks + 1


class LeadingPace:
    """Rank 0's side. Safepoint n may be passed once the word is 2n; it is a stop while the word is 2n - 1."""

    def __init__(self, words: SharedWords, ranks: int) -> None:
        self._words = words
        self._go = 2 * ranks
        self._others = range(ranks + 1, 2 * ranks)
        self._at = 0

    def passed(self, pause: bool) -> bool:
        """The next safepoint is reached, and is a stop or is not; returns which.

        After a stop all ranks stand there: what rows that leave have written, they have written.
        """
        self._at += 1
        self._words.set(self._go, 2 * self._at - int(pause))
        if pause:
            for other in self._others:
                self._words.wait(other, self._at)
        return pause


class FollowingPace:
    """The side of rank number `rank`."""

    def __init__(self, words: SharedWords, rank: int, ranks: int) -> None:
        self._words = words
        self._go = 2 * ranks
        self._own = ranks + rank
        self._at = 0

    def passed(self) -> bool:
        """The next safepoint is reached; returns, once rank 0 has reached it, whether it is a stop."""
        self._at += 1
        stop = 2 * self._at - 1
        pause = self._words.wait(self._go, stop) == stop
        if pause:
            self._words.set(self._own, self._at)
        return pause
