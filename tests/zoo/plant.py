"""Plants a bug: swaps the code of the functions that a small edit of a module's source changes, and puts it back.

Only code objects change hands: classes, enums and everything else that other modules hold stay what they are, so that
one process can plant bug after bug. Knows nothing of what the code does.
"""

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType


class Gone(Exception):
    """The source is not what the bug was written for: move the bug along with it."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In `module`, where `old` stands exactly once, `new` stands instead."""

    module: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Bug:
    """A mistake that a programmer could make. `invariants`: those that it breaks; any of them may notice it.

    `seed` is one that catches it soon: where the hunt begins.
    """

    name: str
    what: str
    invariants: tuple[str, ...]
    edits: tuple[Edit, ...]
    seed: int = 0


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Within this context the code has the bug.

    Raises:
        Gone: an edit's text is not in the source exactly once, or changes no function.
    """
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for edit in bug.edits:
            for function, code in _changed(bug.name, edit):
                before.append((function, function.__code__))
                function.__code__ = code
        yield
    finally:
        for function, code in reversed(before):
            function.__code__ = code


def _changed(name: str, edit: Edit) -> list[tuple[FunctionType, CodeType]]:
    """The functions that the edit changes, and what they become."""
    module = importlib.import_module(edit.module)
    source, file = inspect.getsource(module), str(module.__file__)
    if source.count(edit.old) != 1:
        raise Gone(f"bug {name!r}: {edit.module} has {source.count(edit.old)} times, not once:\n{edit.old}")
    now = _functions(compile(source, file, "exec", dont_inherit=True))
    then = _functions(compile(source.replace(edit.old, edit.new), file, "exec", dont_inherit=True))
    if now.keys() != then.keys():
        raise Gone(f"bug {name!r} adds or removes functions of {edit.module}")
    changed = [qualified for qualified, code in then.items() if not _same(code, now[qualified])]
    if not changed:
        raise Gone(f"bug {name!r} changes no function of {edit.module}")
    return [(_function(module, qualified), then[qualified]) for qualified in changed]


def _functions(code: CodeType) -> dict[str, CodeType]:
    """Functions and methods below a module's code, by qualified name; what is local to one is part of it."""
    found: dict[str, CodeType] = {}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            is_class = not inner.co_flags & inspect.CO_OPTIMIZED
            found |= _functions(inner) if is_class else {inner.co_qualname: inner}
    return found


def _same(one: CodeType, other: CodeType) -> bool:
    """Whether both do the same, on whatever lines they stand."""
    if (one.co_code, one.co_names, one.co_varnames) != (other.co_code, other.co_names, other.co_varnames):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    for ours, theirs in zip(one.co_consts, other.co_consts, strict=True):
        if isinstance(ours, CodeType) and isinstance(theirs, CodeType):
            if not _same(ours, theirs):
                return False
        elif type(ours) is not type(theirs) or ours != theirs:
            return False
    return True


def _function(module: object, qualified: str) -> FunctionType:
    owner: object = module
    *path, last = qualified.split(".")
    for part in path:
        owner = getattr(owner, part)
    found = inspect.getattr_static(owner, last)
    while not isinstance(found, FunctionType):
        found = getattr(found, "fget", None) or getattr(found, "__func__", None) or found.__wrapped__
    return found
