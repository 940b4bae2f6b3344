"""Numbers on which ranks wait for each other."""

import os
from threading import Event

import pytest

from dunlin.engine.ranks.errors import RankGone
from dunlin.engine.ranks.shared_words import SharedWords, is_supported
from tests.engine.ranks.two_ranks import together


def test_a_number_is_seen_by_all_that_map_it() -> None:
    fd = os.memfd_create("words")
    first, second = SharedWords(fd, 3), SharedWords(fd, 3)
    first.set(2, 1 << 40)
    assert (second.get(2), second.get(1)) == (1 << 40, 0)
    assert second.wait(2, 5) == 1 << 40


def test_a_wait_ends_with_the_number() -> None:
    """The low half does not change: beyond 2^32 a wait still ends, at the latest when it looks again."""
    fd = os.memfd_create("words")
    first, second = SharedWords(fd, 1), SharedWords(fd, 1)
    begun = Event()

    def wait() -> int:
        begun.set()
        return second.wait(0, 1 << 32)

    def write() -> int:
        begun.wait()
        first.set(0, 1 << 32)
        return 0

    assert together(wait, write)[0] == 1 << 32


def test_a_wait_for_a_rank_that_has_ended_ends() -> None:
    words = SharedWords(os.memfd_create("words"), 1, is_alive=lambda: False)
    with pytest.raises(RankGone, match="0 of 1"):
        words.wait(0, 1)
    words.set(0, 1)
    assert words.wait(0, 1) == 1  # what it wrote before counts


def test_this_machine_can_have_ranks() -> None:
    assert is_supported()
