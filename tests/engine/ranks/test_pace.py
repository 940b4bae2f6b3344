"""Ranks stop at the same safepoint, which rank 0 alone chooses, however far behind the others are."""

import os
from functools import partial
from random import Random

import pytest

from dunlin.engine.ranks.errors import RankGone
from dunlin.engine.ranks.pace import FollowingPace, LeadingPace, copies_word, word_count
from dunlin.engine.ranks.shared_words import SharedWords
from tests.engine.ranks.two_ranks import together


def test_a_safepoint_that_rank_0_has_not_reached_is_not_passed() -> None:
    fd = os.memfd_create("words")
    leader = LeadingPace(SharedWords(fd, word_count(2)), 2)
    follower = FollowingPace(SharedWords(fd, word_count(2), is_alive=lambda: False), 1, 2)
    with pytest.raises(RankGone):
        follower.passed()
    leader.passed(False)
    assert FollowingPace(SharedWords(fd, word_count(2)), 1, 2).passed() is False


def test_one_that_is_behind_passes_what_rank_0_passed() -> None:
    fd = os.memfd_create("words")
    leader = LeadingPace(SharedWords(fd, word_count(2)), 2)
    follower = FollowingPace(SharedWords(fd, word_count(2)), 1, 2)
    for _ in range(5):
        leader.passed(False)
    assert [follower.passed() for _ in range(5)] == [False] * 5


@pytest.mark.parametrize("ranks", [2, 3])
def test_all_stop_where_rank_0_stops(ranks: int) -> None:
    fd, random = os.memfd_create("words"), Random(ranks)
    stops = [random.random() < 0.3 for _ in range(300)]
    leader = LeadingPace(SharedWords(fd, word_count(ranks)), ranks)
    others = [FollowingPace(SharedWords(fd, word_count(ranks)), rank, ranks) for rank in range(1, ranks)]

    def follow(each: FollowingPace) -> list[bool]:
        return [each.passed() for _ in stops]

    led, *followed = together(
        lambda: [leader.passed(stop) for stop in stops], *(partial(follow, each) for each in others)
    )
    assert led == stops
    assert all(each == stops for each in followed)


def test_all_copy_at_a_safepoint_before_it_is_passed_or_is_a_stop() -> None:
    """Rank 0 waits for each copy before it asks for the next, as for what it hashes."""
    fd, random = os.memfd_create("words"), Random(5)
    ahead = [(random.randrange(3), random.random() < 0.3) for _ in range(200)]
    words = [SharedWords(fd, word_count(2)) for _ in range(2)]
    leader, follower = LeadingPace(words[0], 2), FollowingPace(words[1], 1, 2)
    done: list[int] = []

    def lead() -> list[bool]:
        stops = []
        for copies, stop in ahead:
            for _ in range(copies):
                leader.copy_here()
                leads.append(len(leads) + 1)
                words[0].wait(copies_word(1, 2), len(leads))
            stops.append(leader.passed(stop))
        return stops

    def copy() -> None:
        done.append(len(leads))
        words[1].set(copies_word(1, 2), len(done))

    leads: list[int] = []
    led, followed = together(lead, lambda: [follower.passed(copy) for _ in ahead])
    assert led == followed == [stop for _, stop in ahead]
    assert len(done) == sum(copies for copies, _ in ahead)
