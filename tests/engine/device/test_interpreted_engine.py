"""A GPU's engine as far as it runs without one: `--device interpret`, with Triton's kernels by its interpreter."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

from dunlin.engine.attention import flashinfer_prompts
from dunlin.engine.attention.base import LocalRows
from dunlin.engine.attention.flashinfer_prompts import FlashinferPrompts
from dunlin.engine.attention.spans import slot_span
from dunlin.engine.attention.tile_sizes import split_counts
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.numerics import for_narrow_kv
from dunlin.engine.device.base import EngineDevice
from dunlin.engine.device.choice import open_device
from dunlin.engine.device.cuda import call_again
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.arena_slots import slab_of
from dunlin.messages.engine import Interrupt, Interrupted, Resume, StepDone
from dunlin.messages.types import SamplingParams, Verdict, i64
from dunlin.model.kv_dtypes import FP8
from tests.engine.build import Sequences, load, make_checkpoint
from tests.engine.commands import PROMPT, make_open, make_step
from tests.fakes.flashinfer import PrefillWrapper

recorded_segments = pytest.importorskip("dunlin.engine.decoder.gpu.recorded_segments", exc_type=ModuleNotFoundError)
RecordedSegments = recorded_segments.RecordedSegments
step_buffers = pytest.importorskip("dunlin.engine.decoder.gpu.step_buffers", exc_type=ModuleNotFoundError)
gpu_numerics = pytest.importorskip("dunlin.engine.decoder.gpu.gpu_numerics", exc_type=ModuleNotFoundError)
prompt_choice = pytest.importorskip("dunlin.engine.attention.prompt_choice", exc_type=ModuleNotFoundError)
DecodeSize = step_buffers.DecodeSize

OTHER = [9, 8, 7]
STEPS = 4


@pytest.fixture(scope="module")
def device() -> EngineDevice:
    return open_device("interpret")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=3, hidden=48, heads=4, intermediate=64)


@pytest.fixture(scope="module")
def model(directory: Path, device: EngineDevice) -> Iterator[LoadedModel]:
    numerics, told = device.choose_numerics()
    assert told == "a GPU's code interpreted on the CPU: attention, norms and positions by Triton, products by torch"
    loaded = load_model(directory, "float32", 4 << 20, numerics, os.memfd_create("ledger"), source=device.memory)
    yield loaded
    loaded.arena.close()


def make_runner(model: LoadedModel, device: EngineDevice, **options: Any) -> EngineRunner:
    memory = OwnMemory(slab_of(model.arena, model.decoder.kv, device.kv))
    return EngineRunner(model.decoder, model.slots, lambda: 0.0, memory=memory, **options)


def run(runner: EngineRunner, step: Any) -> StepDone:
    assert runner.receive(step) == []
    (done,) = runner.work(lambda: None)
    assert isinstance(done, StepDone)
    return done


def generate(runner: EngineRunner, count: int, **options: Any) -> list[list[int]]:
    """Two texts, one of which joins when the other decodes already."""
    for number, prompt in ((1, PROMPT), (2, OTHER)):
        assert runner.receive(make_open(number, prompt, **options)) == []
    tokens: dict[int, list[int]] = {1: [], 2: []}
    slots = {1: 0, 2: 100}
    lengths = {1: len(PROMPT), 2: len(OTHER)}
    computed = {1: 0, 2: 0}
    for number in range(1, count + 1):
        texts = (1,) if number == 1 else (1, 2)
        rows = [(text, computed[text], lengths[text], slots[text] + computed[text]) for text in texts]
        done = run(runner, make_step(number, *rows))
        for text, token in zip(done.sequence, done.token, strict=True):
            tokens[text].append(token)
            computed[text], lengths[text] = lengths[text], lengths[text] + 1
    return [tokens[1], tokens[2]]


@pytest.fixture(scope="module")
def wanted(directory: Path) -> Callable[..., list[list[int]]]:
    loaded = load(directory, attention="torch")
    return lambda **options: generate(EngineRunner(loaded.decoder, loaded.slots, lambda: 0.0), STEPS, **options)


def test_logits_are_the_cpus(directory: Path, model: LoadedModel) -> None:
    parts = [(1, PROMPT, 0), (2, OTHER, 0)]
    slots = {1: [50, 3, 4, 9, 12, 13, 14, 15, 30, 31], 2: [7, 6, 5]}
    ours, theirs = (
        Sequences(each.decoder, slots).compute(parts) for each in (model, load(directory, attention="torch"))
    )
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_segments, "SEGMENT_LAYERS", 2)


@pytest.mark.usefixtures("short_segments")
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3, "top_p": 0.9}])
def test_texts_are_the_cpus_by_recorded_segments_too(
    model: LoadedModel, device: EngineDevice, wanted: Callable[..., list[list[int]]], sampling: dict[str, Any]
) -> None:
    told = wanted(sampling=SamplingParams(**sampling))
    recorded: list[int] = []

    def record(function: Callable[[], None], is_known: bool) -> Callable[[], None]:
        recorded.append(1)
        return function

    segments = RecordedSegments(model.decoder, record)
    runner = make_runner(model, device, begin_segments=segments.begin)
    assert generate(runner, STEPS, sampling=SamplingParams(**sampling)) == told
    assert len(recorded) == 2, "of 2 rows: layers 0 and 1, and the last"
    assert generate(make_runner(model, device), STEPS, sampling=SamplingParams(**sampling)) == told


@pytest.mark.parametrize("is_recorded", [True, False])
def test_texts_are_the_cpus_with_flashinfers_prompts_too(
    model: LoadedModel,
    device: EngineDevice,
    wanted: Callable[..., list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    is_recorded: bool,
) -> None:
    wrapper, seconds = PrefillWrapper(), iter((1.0, 2.0))
    monkeypatch.setattr(
        gpu_numerics, "open_flashinfer", lambda *_: FlashinferPrompts(lambda: wrapper, lambda: lambda: None)
    )
    monkeypatch.setattr(flashinfer_prompts, "WRAPPERS", 1)
    monkeypatch.setattr(prompt_choice, "TIMED_ROWS", ((20, 0),))
    numerics, told = gpu_numerics.choose_prompts(
        "flashinfer 9", model.decoder, lambda work: next(seconds), lambda: lambda: None
    )
    assert told == "prompts by flashinfer 9, in 0.50 of Triton's time"
    wrapper.runs.clear()
    decoder = model.decoder.with_numerics(numerics)
    segments = RecordedSegments(decoder, call_again).begin if is_recorded else None
    runner = make_runner(replace(model, decoder=decoder), device, begin_segments=segments)
    assert generate(runner, STEPS) == wanted()
    assert wrapper.runs == [[len(PROMPT)]] * decoder.config.layers


@pytest.mark.usefixtures("short_segments")
def test_texts_are_the_cpus_with_kv_in_fp8_too(directory: Path, device: EngineDevice) -> None:
    plain = load(directory, attention="torch", kv_dtype=FP8)
    told = generate(EngineRunner(plain.decoder, plain.slots, lambda: 0.0), STEPS)
    chosen = for_narrow_kv(device.choose_numerics()[0])
    fd = os.memfd_create("ledger")
    model = load_model(directory, "float32", 4 << 20, chosen, fd, source=device.memory, kv_dtype=FP8)
    try:
        segments = RecordedSegments(model.decoder, call_again)
        assert generate(make_runner(model, device, begin_segments=segments.begin), STEPS) == told
        assert generate(make_runner(model, device), STEPS) == told
    finally:
        model.arena.close()


def test_a_row_that_leaves_between_two_pieces_comes_back(
    model: LoadedModel, device: EngineDevice, wanted: Callable[..., list[list[int]]]
) -> None:
    runner = make_runner(model, device, limits=RunnerLimits(piece_tokens=4))
    runner.receive(make_open(1, PROMPT))
    runner.receive(make_step(1, (1, 0, len(PROMPT), 0)))
    pauses = 0

    def pause_at_seventh() -> bool:
        nonlocal pauses
        pauses += 1
        return pauses == 7

    assert runner.work(pause_at_seventh) == []
    runner.receive(Interrupt(Verdict.SUSPEND, ticket=4))
    left, _ = runner.work(lambda: None)
    assert isinstance(left, Interrupted)
    assert list(left.parked) == [1]
    assert runner.receive(Resume(2, i64([1]))) == []
    (done,) = runner.work(lambda: None)
    assert list(done.token) == wanted()[0][:1]


def test_the_host_waits_at_each_safepoint_and_at_the_end_of_a_step(model: LoadedModel, device: EngineDevice) -> None:
    told: list[str] = []

    class Pacer:
        def pace(self, left: int) -> None:
            told.append("pace")

        def settle(self) -> None:
            told.append("settle")

        def advance(self, most_s: float) -> bool:
            told.append("advance")
            return True

        def mark(self) -> None: ...

    runner = make_runner(model, device, pacer=Pacer())
    runner.receive(make_open(1, PROMPT))
    run(runner, make_step(1, (1, 0, len(PROMPT), 0)))
    assert told.count("pace") >= model.config.layers
    assert told[-1] == "settle"
    assert told.count("settle") == 1
    told.clear()
    run(runner, make_step(2, (1, len(PROMPT), len(PROMPT) + 1, len(PROMPT))))
    assert told == ["advance", "settle"], "a step of decode rows has no safepoint"


def test_steps_that_rows_may_leave_are_not_recorded(model: LoadedModel, device: EngineDevice) -> None:
    begun: list[int] = []
    segments = RecordedSegments(model.decoder, call_again)

    def begin(*given: Any) -> Any:
        begun.append(1)
        return segments.begin(*given)

    runner = make_runner(model, device, begin_segments=begin)
    runner.receive(make_open(1, PROMPT))
    run(runner, make_step(1, (1, 0, len(PROMPT), 0)))
    at = len(PROMPT)
    run(runner, make_step(2, (1, at, at + 1, at), preemptible=True))
    assert begun == []
    run(runner, make_step(3, (1, at + 1, at + 2, at + 1)))
    assert begun == [1]


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few tokens as these tests have: the interpreter takes its time for each."""
    for module in (step_buffers, recorded_segments):
        monkeypatch.setattr(module, "MIXED_TOKENS", (16, 32))


@pytest.mark.usefixtures("small_sizes")
def test_small_steps_with_prompts_are_recorded_too(
    model: LoadedModel, device: EngineDevice, wanted: Callable[..., list[list[int]]]
) -> None:
    recorded: list[bool] = []

    def record(function: Callable[[], None], is_known: bool) -> Callable[[], None]:
        recorded.append(is_known)
        return function

    segments = RecordedSegments(model.decoder, record)
    runner = make_runner(model, device, begin_segments=segments.begin, rows_may_leave_segments=True)
    assert generate(runner, STEPS) == wanted()
    # The decode rows' layers; and of a prompt alone or beside one: before layer 0, between two layers, after the last.
    assert sorted(recorded) == [False] * 4 + [True]


@pytest.mark.usefixtures("small_sizes")
def test_a_row_leaves_between_two_segments_and_the_other_goes_on(
    model: LoadedModel, device: EngineDevice, wanted: Callable[..., list[list[int]]]
) -> None:
    segments = RecordedSegments(model.decoder, call_again)
    runner = make_runner(model, device, begin_segments=segments.begin, rows_may_leave_segments=True)
    for number, prompt in ((1, PROMPT), (2, OTHER)):
        runner.receive(make_open(number, prompt))
    runner.receive(make_step(1, (1, 0, len(PROMPT), 0), (2, 0, len(OTHER), 100)))
    assert runner.work(lambda: True) == [], "after the first segment"
    runner.receive(Interrupt(Verdict.SUSPEND, i64([1]), ticket=4))
    (left,) = runner.work(lambda: None)
    assert isinstance(left, Interrupted)
    assert (list(left.parked), list(left.layer)) == ([1], [1])
    (done,) = runner.work(lambda: None)
    assert (list(done.sequence), list(done.token)) == ([2], wanted()[1][:1])
    assert runner.receive(Resume(2, i64([1]))) == []
    (done,) = runner.work(lambda: None)
    assert (list(done.sequence), list(done.token)) == ([1], wanted()[0][:1])


@pytest.mark.usefixtures("small_sizes")
def test_what_is_recorded_in_advance_writes_no_kv(
    model: LoadedModel, device: EngineDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_segments, "usual_decode_sizes", lambda: [DecodeSize(2, 1)])
    recorded: list[int] = []

    def record(function: Callable[[], None], is_known: bool) -> Callable[[], None]:
        function()
        recorded.append(1)
        return function

    segments, beats = RecordedSegments(model.decoder, record), []
    before = [layer[: model.slots].clone() for layer in model.decoder.kv]
    segments.warm_up(lambda: beats.append(1))
    # Three layers of decode rows are one segment; of two other sizes there are four parts.
    assert len(recorded) == len(beats) == 9
    assert all(torch.equal(layer[: model.slots], kv) for layer, kv in zip(model.decoder.kv, before, strict=True))
    runner = make_runner(model, device, begin_segments=segments.begin, rows_may_leave_segments=True)
    generate(runner, STEPS)
    assert len(recorded) == 9, "its decode steps are of 2 rows, its prompts shorter than 32"


@pytest.mark.parametrize("heads", [4, 1])
def test_the_usual_sizes_are_those_of_prompts_and_decode_rows(tmp_path: Path, heads: int) -> None:
    """Of a model with `heads` query heads for a KV head: tiles have fewer queries the more there are."""
    loaded = load(make_checkpoint(tmp_path, hidden=64, heads=heads, kv_heads=1), attention="torch")
    tabler = step_buffers.StepTabler(loaded.decoder)
    runs = slot_span(range(20_000), list(range(20_000)))

    def tables(*rows: tuple[int, int]) -> Any:
        """Rows of so many tokens, the last of so many keys."""
        stops = list(accumulate(tokens for tokens, _ in rows))
        lengths = [keys for _, keys in rows]
        return tabler.tables(LocalRows([0, *stops[:-1]], stops, lengths, [(runs.run_at, runs.run_slot)] * len(rows)))

    for tokens, padded in ((2, 32), (32, 32), (65, 128), (300, 320), (512, 512), (513, 640), (2048, 2048)):
        assert (tables((tokens, tokens)).tokens, tables((tokens, tokens)).decode) == (padded, None)
    assert tables((2048, 2048), (1, 9)).tokens is None
    assert tables((2048, 20_000)).tokens is None, "its attention is more than one piece"
    assert tables(*[(1, 9)] * 200, (40, 400)).tokens == 256
    usual = step_buffers.usual_decode_sizes()
    for rows in (1, 3, 65, 256):
        assert tables(*[(1, 9)] * (rows - 1), (1, 8000)).decode in usual
    assert tables(*[(1, 9)] * 257).tokens is None


@pytest.mark.parametrize("prompt", [(), ((40, 400),)])
@pytest.mark.parametrize(
    "keys",
    [
        pytest.param((2900, 3072, 3073), id="the longest row has 5 splits, shorter ones 6"),
        pytest.param((8705, 8500), id="14 and 17, of which 16 are recorded"),
    ],
)
def test_a_step_has_the_splits_of_each_of_its_rows(
    model: LoadedModel, keys: tuple[int, ...], prompt: tuple[tuple[int, int], ...]
) -> None:
    """Splits are whole blocks of keys: a row may have fewer of them than a shorter one."""
    tabler = step_buffers.StepTabler(model.decoder)
    runs = slot_span(range(10_000), list(range(10_000)))
    rows = [*((1, each) for each in keys), *prompt]
    stops = list(accumulate(tokens for tokens, _ in rows))
    lengths = [each for _, each in rows]
    tables = tabler.tables(LocalRows([0, *stops[:-1]], stops, lengths, [(runs.run_at, runs.run_slot)] * len(rows)))
    most = int(split_counts(torch.tensor(keys)).max())
    assert tables.splits == most
    assert tables.decode is None if prompt else tables.decode.splits >= most
