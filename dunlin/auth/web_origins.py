"""Web origins as browsers write them in the header `Origin`, for the flag `--cors` and the HTTP door."""

import argparse
import re

ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")


def is_origin(text: str) -> bool:
    """Whether the text is an origin, `null` (that of a page without one), or `*` for all."""
    return text in (ANY_ORIGIN, "null") or (_ORIGIN.fullmatch(text) is not None and text == text.lower())


def origin_argument(text: str) -> str:
    """The text, checked: a `type` for argparse. Raises ArgumentTypeError."""
    if is_origin(text):
        return text
    raise argparse.ArgumentTypeError(origin_error(text))


def origin_error(text: str) -> str:
    """The error's text for something that is not an origin."""
    return f"{text!r} is not an origin: give scheme://host[:port] in lower case without a path, or *"
