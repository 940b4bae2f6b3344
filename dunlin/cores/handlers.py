"""Which method of a core's part takes which message: the method is marked, its annotation says the message.

    class Attempts:
        @handles
        def on_accepted(self, now_s: float, sender: Address, message: Accepted) -> list[Effect]: ...

    self._handlers = handlers_of(self, attempts, moves)     # in the core

Pure, and read once per class: the table of a core is an ordinary dictionary.
"""

import types
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from dunlin.effects import Handler

_Method = TypeVar("_Method")
_MARK = "__takes_messages__"


def handles(method: _Method) -> _Method:
    """Mark a method `(self, now_s, sender, message)` that takes the messages of its last annotation, one or a union."""
    setattr(method, _MARK, True)
    return method


def handlers_of(*parts: object) -> dict[type[Any], Handler]:
    """The marked methods of all parts, by the class of the message that they take.

    Raises:
        TypeError: two methods take the same message, or a marked method does not say which it takes.
    """
    table: dict[type[Any], Handler] = {}
    for part in parts:
        of_part: Any = type(part)
        for kind, name in _taken_by(of_part):
            if kind in table:
                raise TypeError(f"{of_part.__name__}.{name} takes {kind.__name__}, and so does {table[kind]!r}")
            table[kind] = getattr(part, name)
    return table


@cache
def _taken_by(part: type[Any]) -> tuple[tuple[type[Any], str], ...]:
    """(message, name of the method) of a class and its bases."""
    marked = {name: None for base in part.__mro__ for name, value in vars(base).items() if hasattr(value, _MARK)}
    return tuple((kind, name) for name in marked for kind in _kinds(getattr(part, name)))


def _kinds(method: Any) -> Iterator[type[Any]]:
    *_, (_, hint) = ((name, hint) for name, hint in get_type_hints(method).items() if name != "return")
    for kind in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        if not isinstance(kind, type):
            raise TypeError(f"{method.__qualname__} takes {kind}: annotate it with the message's class")
        yield kind
