"""Plants a bug: functions of the cores do something else as long as it is planted, and their own thing afterwards.

A bug names the functions themselves, never their text: what is renamed is renamed here too, and what is gone is an
error of mypy and of the import. A function keeps its identity while its code changes, so tables that hold it, bound
methods and modules that imported it by name all see the bug. Knows nothing of what the code does.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Swap:
    """Calls of `target` become calls of `by`, whose first argument is the original function.

    `caller`: the code whose calls change; None: every call does.
    """

    target: FunctionType
    by: Callable[..., Any]
    caller: CodeType | None = None


@dataclass(frozen=True, slots=True)
class Bug:
    """A mistake that a programmer could make. `invariants`: those that it breaks; any of them may notice it.

    `seed` is one that catches it soon: where the hunt begins. `restless`: it is hunted while rows leave their steps;
    `elastic`: where prompts are longer than any instance's slots; `batch_jobs`: where dispatchers work on batch jobs.
    """

    name: str
    what: str
    invariants: tuple[str, ...]
    swaps: tuple[Swap, ...]
    seed: int = 0
    restless: bool = False
    elastic: bool = False
    batch_jobs: bool = False


def swap(
    target: Callable[P, R],
    by: Callable[Concatenate[Callable[P, R], P], R],
    called_by: Callable[..., object] | None = None,
) -> Swap:
    """`by(original, …)` instead of `target(…)`; only where `called_by` itself makes the call, if that is given.

    Raises:
        TypeError: one of them is no function (a class, a property, a bound method).
    """
    return Swap(_function(target), by, _function(called_by).__code__ if called_by is not None else None)


def skip(target: Callable[P, R], result: Callable[[], R], called_by: Callable[..., object] | None = None) -> Swap:
    """`result()` instead of `target(…)`: the call is left out. Raises as `swap` does."""

    def leave_out(original: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return result()

    return swap(target, leave_out, called_by)


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Within this context the code has the bug."""
    with ExitStack() as undo:
        for one in bug.swaps:
            undo.enter_context(_swapped(one))
        yield


@contextmanager
def _swapped(one: Swap) -> Iterator[None]:
    function = one.target
    code, defaults, keywords = function.__code__, function.__defaults__, function.__kwdefaults__
    original = FunctionType(code, function.__globals__, function.__name__, defaults, function.__closure__)
    original.__kwdefaults__ = keywords

    def call(*args: Any, **kwargs: Any) -> Any:
        # 0 is this function, 1 the swapped one, 2 the code that called it.
        if one.caller is not None and sys._getframe(2).f_code is not one.caller:
            return original(*args, **kwargs)
        return one.by(original, *args, **kwargs)

    function.__code__, function.__defaults__, function.__kwdefaults__ = _pass_on.__code__, None, {"_to": call}
    try:
        yield
    finally:
        function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, keywords


def _pass_on(*args: Any, _to: Callable[..., Any], **kwargs: Any) -> Any:
    """The code that a swapped function runs; it is called under the function's own name and arguments."""
    return _to(*args, **kwargs)


def _function(target: Callable[..., object]) -> FunctionType:
    if not isinstance(target, FunctionType):
        raise TypeError(f"{target!r} is no function: it cannot be swapped")
    return target
