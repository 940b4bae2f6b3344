"""How far ranks may go: rank 0 decides at each safepoint, and the others begin no piece that it has not allowed.

So a stop is the number of a safepoint that no rank can have passed, and rank 0 asks no other before it decides. Before,
it may have all copy KV there. Of the shared words each rank has three: the pieces of sums that it has written, the last
safepoint at which it stopped, and its copies; and rank 0 one more, by which it tells what it decides. Loads no torch.
"""

from collections.abc import Callable

from dunlin.engine.ranks.shared_words import SharedWords

ROOM = 1 << 20
"""Values that rank 0's word takes at one safepoint: number n begins with n * ROOM, which the copies are added to."""
STOP, GO = ROOM - 2, ROOM - 1
"""The last of them: stop here, or go on."""


def word_count(ranks: int) -> int:
    """The shared words of an engine of so many ranks."""
    return 3 * ranks + 1


def copies_word(rank: int, ranks: int) -> int:
    """The word that counts the copies of a rank."""
    return 2 * ranks + 1 + rank


class LeadingPace:
    """Rank 0's side."""

    def __init__(self, words: SharedWords, ranks: int) -> None:
        self._words = words
        self._go = 2 * ranks
        self._others = range(ranks + 1, 2 * ranks)
        self._at = 0
        self._copies = 0

    def copy_here(self) -> None:
        """The next safepoint is reached: the others are to copy before it is passed or is a stop."""
        self._copies += 1
        self._words.set(self._go, (self._at + 1) * ROOM + self._copies)

    def passed(self, pause: bool) -> bool:
        """The next safepoint is reached, and is a stop or is not; returns which.

        After a stop all ranks stand there: what rows that leave have written, they have written.
        """
        self._at += 1
        self._copies = 0
        self._words.set(self._go, self._at * ROOM + (STOP if pause else GO))
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

    def passed(self, copy: Callable[[], object] = lambda: None) -> bool:
        """The next safepoint is reached; returns, once rank 0 has reached it, whether it is a stop. `copy` is called
        each time that rank 0 has told of something to copy before.
        """
        self._at += 1
        first, copies = self._at * ROOM, 0
        while (told := self._words.wait(self._go, first + copies + 1) - first) < STOP:
            copy()
            copies += 1
        if told == STOP:
            self._words.set(self._own, self._at)
        return told == STOP
