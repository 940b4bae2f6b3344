"""What attends to prompts is measured: never what computes something else, and never what is slower."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dunlin.engine.attention.base import PLAIN, AttentionKind
from dunlin.engine.attention.flashinfer_prompts import FlashinferPrompts
from tests.fakes.flashinfer import PrefillWrapper

choice = pytest.importorskip("dunlin.engine.attention.prompt_choice", exc_type=ModuleNotFoundError)

WINDOWED = AttentionKind(window=64)
SHAPE = choice.AttentionShape(2, 1, 16, torch.float32, torch.float32, frozenset({PLAIN, WINDOWED}), torch.device("cpu"))


class Stopwatch:
    """Tells these seconds one after the other, and whether work was computed."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = iter(seconds)

    def __call__(self, work: Callable[[], object]) -> float:
        work()
        return next(self._seconds)


@pytest.fixture(autouse=True)
def _short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "AGREED_ROWS", ((1, 30), (40, 60)))
    monkeypatch.setattr(choice, "TIMED_ROWS", ((40, 10), (50, 0)))


def choose(open_kernel: Callable[[], Any], *seconds: float) -> tuple[Any, str]:
    kernel, told = choice.choose_prompt_kernel("flashinfer 9", open_kernel, SHAPE, Stopwatch(*seconds))
    return kernel, told


def opened(**options: Any) -> Callable[[], FlashinferPrompts]:
    return lambda: FlashinferPrompts(lambda: PrefillWrapper(**options), lambda: lambda: None)


def test_it_is_taken_where_it_is_faster() -> None:
    kernel, told = choose(opened(), 1.0, 3.0, 2.0, 6.0)
    assert isinstance(kernel, FlashinferPrompts)
    assert told == "prompts by flashinfer 9, in 0.50 of Triton's time"


@pytest.mark.parametrize("share", [0.98, 1.5])
def test_it_is_left_where_it_is_as_slow(share: float) -> None:
    kernel, told = choose(opened(), share, share, 1.0, 1.0)
    assert kernel is None
    assert told == f"prompts by Triton (flashinfer 9 takes {share:.2f} of its time)"


def test_it_is_left_where_it_computes_something_else() -> None:
    assert choose(opened(error=0.2)) == (None, "prompts by Triton (flashinfer 9 gives other results here)")


def test_whatever_it_raises_is_told_in_a_line() -> None:
    def fail() -> FlashinferPrompts:
        raise RuntimeError("no nvcc\nin /usr/local/cuda")

    assert choose(fail) == (None, "prompts by Triton (flashinfer 9 fails here: RuntimeError: no nvcc)")


def test_each_kind_of_layer_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PrefillWrapper.plan

    def forget_window(self: PrefillWrapper, *given: Any, window_left: int, **named: Any) -> None:
        plan(self, *given, window_left=-1, **named)

    monkeypatch.setattr(PrefillWrapper, "plan", forget_window)
    assert choose(opened()) == (None, "prompts by Triton (flashinfer 9 gives other results here)")
