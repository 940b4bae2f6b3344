"""NAME=DIR, as settings name adapters."""

import pytest

from dunlin.config.adapters import MOST_ADAPTERS, split_adapters
from dunlin.config.common import ClusterConfig


def test_names_and_directories_in_order() -> None:
    assert split_adapters(()) == {}
    found = split_adapters(("b=/x", "org/a=c=d"))
    assert [*found.items()] == [("b", "/x"), ("org/a", "c=d")]


@pytest.mark.parametrize(
    "words",
    [("a",), ("=x",), ("a=",), ("a=x", "a=y"), ("a\n=x",), ("a" * 257 + "=x",), ("a=/x,y",)],
)
def test_what_is_none_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="adapter"):
        split_adapters(words)
    with pytest.raises(ValueError, match="adapter"):
        ClusterConfig(lora=words)


def test_the_count_is_bounded() -> None:
    words = [f"{number}=x" for number in range(MOST_ADAPTERS + 1)]
    assert len(split_adapters(words[1:])) == MOST_ADAPTERS
    with pytest.raises(ValueError, match="at most 64"):
        split_adapters(words)
