"""Adapters as settings name them: `NAME=DIR`. Pure."""

from collections.abc import Iterable

MOST_ADAPTERS = 64
"""Adapters beside each other in one cluster: an engine has all of them in memory."""
MOST_NAME_CHARACTERS = 256


def split_adapters(words: Iterable[str]) -> dict[str, str]:
    """The directory of each adapter by its name, in the order given.

    :raises ValueError: a word is not NAME=DIR, a name comes twice, a directory has a comma, or there are too many.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, directory = word.partition("=")
        if not name or not equals or not directory:
            raise ValueError(f"an adapter is given as NAME=DIR, not {word!r}")
        if len(name) > MOST_NAME_CHARACTERS or not name.isprintable():
            raise ValueError(f"an adapter's name has at most {MOST_NAME_CHARACTERS} printable characters: {name!r}")
        if "," in directory:
            raise ValueError(f"a comma parts adapters in settings, so no directory can have one: {directory!r}")
        if name in found:
            raise ValueError(f"two adapters are named {name!r}")
        found[name] = directory
    if len(found) > MOST_ADAPTERS:
        raise ValueError(f"{len(found)} adapters are given; at most {MOST_ADAPTERS} are served beside each other")
    return found
