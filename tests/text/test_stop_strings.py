"""Stop strings: found wherever the pieces break, held back no longer than needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.text.stop_strings import StopMatch, StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    """The text that went out, and whether it was stopped."""
    matcher, out = StopMatcher(stops), ""
    for piece in pieces:
        matched = matcher.push(piece)
        out += matched.text
        if matched.stopped:
            return out, True
    return out + matcher.finish(), False


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.text("abc", max_size=5), max_size=8))
def test_the_stop_that_ends_first_wins_however_the_text_is_cut(stops: list[str], pieces: list[str]) -> None:
    assert run(stops, pieces) == expected(stops, "".join(pieces))


def test_only_what_may_become_a_stop_is_held_back() -> None:
    matcher = StopMatcher(["###"])
    assert matcher.push("one #") == StopMatch("one ", stopped=False)
    assert matcher.push(" two ##") == StopMatch("# two ", stopped=False)
    assert matcher.push("#rest") == StopMatch("", stopped=True)


def test_text_that_did_not_become_a_stop_comes_out_at_the_end() -> None:
    matcher = StopMatcher(["###"])
    assert matcher.push("a##") == StopMatch("a", stopped=False)
    assert matcher.finish() == "##"
    assert matcher.finish() == ""


def test_without_stops_nothing_is_held() -> None:
    assert StopMatcher([]).push("anything") == StopMatch("anything", stopped=False)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopMatcher(["a", ""])
