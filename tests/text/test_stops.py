"""Stop strings: found wherever the pieces break, held back no longer than needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.text.stops import Matched, StopMatcher


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
    ends = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(ends)], True) if ends else (text, False)


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.text("abc", max_size=30), st.data())
def test_the_first_stop_ends_the_text_one_character_at_a_time(stops: list[str], text: str, data: st.DataObject) -> None:
    out, stopped = run(stops, list(text))
    wanted, wanted_stop = expected(stops, text)
    assert stopped == wanted_stop
    # Where two stops overlap the one that ends first wins: it is seen before the other is whole.
    assert wanted.startswith(out) if stopped else out == wanted


@given(st.text("ab", min_size=1, max_size=4), st.lists(st.text("ab", max_size=5), max_size=8))
def test_one_stop_string_does_not_depend_on_how_the_text_is_cut(stop: str, pieces: list[str]) -> None:
    assert run([stop], pieces) == expected([stop], "".join(pieces))


def test_only_what_may_become_a_stop_is_held_back() -> None:
    matcher = StopMatcher(["###"])
    assert matcher.push("one #") == Matched("one ", stopped=False)
    assert matcher.push(" two ##") == Matched("# two ", stopped=False)
    assert matcher.push("#rest") == Matched("", stopped=True)


def test_text_that_did_not_become_a_stop_comes_out_at_the_end() -> None:
    matcher = StopMatcher(["###"])
    assert matcher.push("a##") == Matched("a", stopped=False)
    assert matcher.finish() == "##"
    assert matcher.finish() == ""


def test_without_stops_nothing_is_held() -> None:
    assert StopMatcher([]).push("anything") == Matched("anything", stopped=False)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        StopMatcher(["a", ""])
