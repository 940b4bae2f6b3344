"""Once a GPU's engine is warm, no step waits for a kernel to be compiled: Triton compiles one for each combination of
dtypes, constants, and what it sees of pointers and numbers. Here that combination is noted instead.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.device.choice import open_device
from dunlin.engine.device.cuda import call_again
from dunlin.engine.device.warm_steps import GPU_WARM_STEPS
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.process.warmup import warm_up
from dunlin.messages.engine import Interrupt, Resume
from dunlin.messages.types import SamplingParams, Verdict, i64
from tests.engine.build import make_checkpoint
from tests.engine.commands import make_open, make_step

triton_kernels = pytest.importorskip("dunlin.engine.attention.triton_kernels", exc_type=ModuleNotFoundError)
product_kernels = pytest.importorskip("dunlin.engine.decoder.gpu.triton_product_kernels")
row_kernels = pytest.importorskip("dunlin.engine.decoder.gpu.triton_row_kernels")
recorded_segments = pytest.importorskip("dunlin.engine.decoder.gpu.recorded_segments")
step_buffers = pytest.importorskip("dunlin.engine.decoder.gpu.step_buffers")
triton_paged = pytest.importorskip("dunlin.engine.attention.triton_paged")
KERNELS = {
    triton_kernels: ("expand_slots", "attend_tiles", "merge_splits"),
    row_kernels: ("norm_rows", "gate_rows", "place_rows", "greatest_of_parts", "greatest_of_rows"),
    product_kernels: ("gated_rows",),
}
GREEDY = SamplingParams(temperature=0.0)
TOKENS = (32, 80)
LONG, SHORT = 900, 10
"""Tokens that texts have before."""


class Watched:
    """A kernel that notes how it would be compiled, and chooses token 1; else it computes nothing."""

    def __init__(self, name: str, kernel: Any, seen: set[tuple[Any, ...]]) -> None:
        self._name, self._kernel, self._seen = name, kernel, seen

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*given: Any, **named: Any) -> None:
            names = self._kernel.arg_names
            arguments = {**dict(zip(names, given, strict=False)), **named}
            kinds = tuple((name, self._kind(name, value)) for name, value in sorted(arguments.items()))
            self._seen.add((self._name, kinds))
            if "found" in arguments:  # the tokens that are chosen
                arguments["found"].fill_(1)

        return launch

    def _kind(self, name: str, value: Any) -> Any:
        is_constant = name.isupper() or name.startswith(("num_", "launch_"))
        if is_constant:
            return value
        if isinstance(value, torch.Tensor):
            is_plain = name in (self._kernel.kwargs["do_not_specialize_on_alignment"] or ())
            return value.dtype, is_plain or value.data_ptr() % 16 == 0
        if isinstance(value, int):
            is_plain = name in (self._kernel.kwargs["do_not_specialize"] or ())
            return "int" if is_plain else (value == 1, value % 16 == 0)
        return type(value)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[LoadedModel]:
    device = open_device("interpret")
    directory = make_checkpoint(tmp_path, layers=2, hidden=48, heads=6, kv_heads=2, intermediate=64, dtype="bfloat16")
    numerics, _ = device.choose_numerics()
    loaded = load_model(directory, "bfloat16", 8 << 20, numerics, os.memfd_create("arena"), source=device.memory)
    yield loaded
    loaded.arena.close()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Any, ...]]:
    found: set[tuple[Any, ...]] = set()
    for module, names in KERNELS.items():
        for name in names:
            monkeypatch.setattr(module, name, Watched(name, getattr(module, name), found))
    for each in (step_buffers, recorded_segments):
        monkeypatch.setattr(each, "MIXED_TOKENS", TOKENS)
    monkeypatch.setattr(triton_paged, "PIECE_PAIRS", 1 << 15)
    return found


def open_texts(runner: EngineRunner) -> None:
    """Texts 1 to 4 have many tokens, 5 to 9 few; the KV of all but the last 40 or 1 is there."""
    for number in range(1, 10):
        held, tokens = (LONG, LONG + 40) if number < 5 else (SHORT, SHORT + 1)
        extents = {"extent_start": i64([1000 * number]), "extent_length": i64([held])}
        assert runner.receive(make_open(number, [5] * tokens, max_tokens=50, sampling=GREEDY, **extents)) == []


def row(text: int, tokens: int) -> tuple[int, int, int, int]:
    start = LONG if text < 5 else SHORT
    return text, start, start + tokens, 1000 * text + start


STEPS = {
    "one row": [row(5, 1)],
    "few rows": [row(each, 1) for each in (5, 6, 7)],
    "many keys": [row(1, 1), row(5, 1)],
    "a part of a prompt": [row(1, 7)],
    "beside rows": [row(1, 9), row(5, 1), row(6, 1)],
    "beside many keys": [row(1, 1), row(2, 11), row(5, 1)],
    "more than is recorded": [row(1, 40), row(2, 40), row(5, 1)],
    "not recorded, beside many keys": [row(1, 40), row(2, 40), row(3, 1), row(6, 1)],
    "more than one piece": [row(1, 40)],
    "two such": [row(1, 40), row(2, 33), row(5, 1)],
}


def work(runner: EngineRunner, pauses: int = 0) -> None:
    """Until nothing is left, or so many safepoints are passed."""
    passed = 0

    def pause() -> bool:
        nonlocal passed
        passed += 1
        return passed == pauses

    while runner.busy and not (pauses and passed >= pauses):
        runner.work(pause)


@pytest.mark.parametrize("with_segments", [True, False])
def test_whatever_a_step_holds_its_kernels_are_there(
    model: LoadedModel, seen: set[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, with_segments: bool
) -> None:
    decode = step_buffers.usual_decode_sizes()
    monkeypatch.setattr(recorded_segments, "usual_decode_sizes", lambda: [each for each in decode if each.rows < 9])
    segments = recorded_segments.RecordedSegments(model.decoder, call_again)
    warm_up(model.decoder, lambda: None, GPU_WARM_STEPS)
    segments.warm_up(lambda: None)
    ready, number = set(seen), 0
    assert {name for name, _ in ready} == {name for names in KERNELS.values() for name in names}

    def check(what: str) -> None:
        for name, kinds in seen - ready:
            alike = [other for known, other in ready if known == name]
            nearest = min(alike, key=lambda other: len(set(kinds) - set(other)))
            pytest.fail(f"{what}: {name} with {set(kinds) - set(nearest)}")

    for what, rows in STEPS.items():
        for pauses in (0, 2, 3):
            begin = segments.begin if with_segments else None
            runner = EngineRunner(
                model.decoder, model.slots, lambda: 0.0, RunnerLimits(piece_tokens=16), begin_segments=begin,
                rows_may_leave_segments=True,
            )  # fmt: skip
            open_texts(runner)
            number += 1
            samples = [int(stop == (LONG + 40 if text < 5 else SHORT + 1)) for text, _, stop, _ in rows]
            assert runner.receive(make_step(number, *rows, sample=samples, preemptible=True)) == []
            work(runner, pauses)
            if runner.steps.is_running:
                runner.receive(Interrupt(Verdict.SUSPEND, i64([rows[0][0]]), ticket=1))
                work(runner)
                number += 1
                assert runner.receive(Resume(number, i64([rows[0][0]]))) == []
                work(runner)
            check(f"{what}, a row leaves after {pauses} pieces")
