"""Answers kept for a while: found by name or alias, and bounded by age, by number and by tokens."""

from dunlin.cores.answer_cache import AnswerCache


def make_cache(most: int = 3, most_tokens: int = 100) -> AnswerCache[str]:
    return AnswerCache(10.0, most, most_tokens)


def test_an_answer_is_found_by_its_name_or_an_alias_until_it_is_too_old() -> None:
    cache = make_cache()
    cache.put(0.0, "a", "first", 5, ("tenant", "a"))
    cache.put(4.0, "b", "second", 5)
    assert [cache.find(9.9, "a"), cache.find(9.9, ("tenant", "a")), cache.find(9.9, "c", "b")] == [
        "first",
        "first",
        "second",
    ]
    assert [cache.find(10.0, "a"), cache.find(10.0, ("tenant", "a")), cache.find(10.0, "b")] == [None, None, "second"]
    assert (len(cache), cache.tokens) == (1, 5)


def test_a_newer_answer_takes_the_name_and_the_alias_of_an_older_one() -> None:
    cache = make_cache()
    cache.put(0.0, "a", "first", 5, "alias")
    cache.put(1.0, "b", "second", 7, "alias")
    cache.put(2.0, "a", "third", 9)
    assert [cache.find(3.0, "alias"), cache.find(3.0, "a")] == ["second", "third"]
    assert (len(cache), cache.tokens) == (2, 16)


def test_an_answer_that_has_no_alias_any_more_is_not_found_by_it() -> None:
    cache = make_cache()
    cache.put(0.0, "a", "first", 5, "alias")
    cache.put(1.0, "a", "second", 5)
    assert [cache.find(2.0, "alias"), cache.find(2.0, "a")] == [None, "second"]


def test_an_answer_that_is_too_old_leaves_when_another_comes() -> None:
    cache = make_cache()
    cache.put(0.0, "a", "first", 60)
    cache.put(10.0, "b", "second", 40)
    assert (len(cache), cache.tokens) == (1, 40)


def test_as_many_tokens_as_are_allowed_are_kept() -> None:
    cache = make_cache(most_tokens=10)
    cache.put(0.0, "a", "first", 4)
    cache.put(0.0, "b", "second", 6)
    assert (len(cache), cache.tokens) == (2, 10)


def test_the_oldest_leave_where_there_are_too_many_or_too_many_tokens() -> None:
    cache = make_cache(most=2, most_tokens=10)
    for name in "abc":
        cache.put(0.0, name, name, 3, name * 2)
    assert [cache.find(1.0, name) for name in ("a", "aa", "b", "cc")] == [None, None, "b", "c"]
    cache.put(1.0, "d", "d", 8)
    assert [cache.find(1.0, name) for name in "bcd"] == [None, None, "d"]
    cache.put(1.0, "e", "e", 11)
    assert (len(cache), cache.tokens) == (0, 0)
