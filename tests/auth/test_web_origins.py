"""Origins: what browsers send is taken, what they never send is refused with how to spell it."""

import argparse

import pytest

from dunlin.auth.web_origins import is_origin, origin_argument


@pytest.mark.parametrize(
    "text", ["*", "null", "https://chat.example.com", "http://127.0.0.1:3000", "http://[::1]:3000", "app://notes.md"]
)
def test_origins_as_browsers_spell_them(text: str) -> None:
    assert is_origin(text)
    assert origin_argument(text) == text


@pytest.mark.parametrize(
    "text", ["", "a.example", "https://", "https://a/", "https://a/b", "HTTPS://a", "https://A", "**"]
)
def test_what_no_browser_sends_is_none(text: str) -> None:
    assert not is_origin(text)
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not an origin: give scheme://host\[:port\]"):
        origin_argument(text)
