"""Ranks stop at the same safepoint, which rank 0 alone chooses, however far behind the others are."""

import os
from functools import partial
from random import Random

import pytest

from dunlin.engine.ranks.errors import RankGone
from dunlin.engine.ranks.pace import FollowingPace, LeadingPace, word_count
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
