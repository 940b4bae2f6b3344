"""Web origins as browsers spell them in `Origin`, for the flags `--cors` and the HTTP door."""

import argparse
import re

ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")


def is_origin(text: str) -> bool:
    """Whether it is an origin, `null` (a page without one), or `*` for all."""
    return text in (ANY_ORIGIN, "null") or (_ORIGIN.fullmatch(text) is not None and text == text.lower())


def origin_argument(text: str) -> str:
    """An argparse type."""
    if is_origin(text):
        return text
    raise argparse.ArgumentTypeError(origin_error(text))


def origin_error(text: str) -> str:
    """What is wrong with a text that is none."""
    return f"{text!r} is not an origin: give scheme://host[:port] in lower case without a path, or *"
