"""A step of a part of the layers, with rooms for the hidden states between two parts."""

from typing import Any

import pytest

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import Close, Step
from tests.engine.commands import make_step
from tests.engine.execution.interrupting import (
    LAYERS,
    Tokens,
    drain,
    interrupt,
    poisoned_runner,
    resume,
    run_to,
)
from tests.engine.execution.mixed_steps import (
    BEFORE,
    CUT,
    LONG,
    MODES,
    SHORT,
    SLACK,
    after,
    before,
    cut_small,
    foreign,
    model_of,
    opens,
    undisturbed,
)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(mode: str, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return model_of(mode, tmp_path_factory.mktemp("model"))


def part(step: int, first: int, stop: int, *rows: tuple[int, int, int, int], **overrides: Any) -> Step:
    rooms = {"hidden_in": 7 + first if first else 0, "hidden_out": 7 + stop if stop < LAYERS else 0}
    return make_step(step, *rows, layer_start=first, layer_stop=stop, **{**rooms, **overrides})


CHUNK = (1, CUT, len(LONG), 200)
DECODE = (2, len(SHORT), len(SHORT) + 1, 300)


@pytest.mark.parametrize("at", [0, 4, 9])
def test_a_step_in_parts_of_the_layers_is_as_good_as_a_whole_one(loaded: LoadedModel, mode: str, at: int) -> None:
    """A part may be suspended, and the next one may take the rows in another order."""
    expected, runner, found = undisturbed(loaded), poisoned_runner(loaded), Tokens()
    run_to(runner, 0, *opens(), before())
    found.add(drain(runner))
    events = run_to(runner, at, part(2, 0, 2, CHUNK, DECODE, sample=[0, 0]))
    if at:
        runner.receive(interrupt())
        runner.receive(resume(8, 2))
        events += runner.work(lambda: False)
        runner.receive(resume(8, 2))
        runner.receive(resume(9, 1))
    runner.receive(part(3, 2, 3, DECODE, CHUNK))
    runner.receive(foreign(4))
    runner.receive(after(5))
    found.add([*events, *drain(runner)])
    assert found.tokens == expected.tokens
    if mode == "deterministic":
        assert found.logprobs == expected.logprobs
    assert runner.steps.rooms.rows(9) == []
    assert runner.steps.count.finished == BEFORE + LAYERS * (len(LONG) - CUT + 1) + SLACK


def test_kv_is_valid_layer_by_layer(loaded: LoadedModel) -> None:
    runner = poisoned_runner(loaded)
    run_to(runner, 0, *opens(), part(2, 0, 2, (3, 0, 3, 400), sample=[0]))
    drain(runner)
    runner.receive(make_step(3, (3, 3, 5, 403)))
    (refused,) = drain(runner)
    assert "the KV before it ends at 0" in refused.detail
    runner.receive(part(4, 0, 1, (3, 3, 5, 403), sample=[0]))
    (done,) = drain(runner)
    assert done.tokens_computed == 2


@pytest.mark.parametrize(
    ("step", "detail"),
    [
        (part(5, 0, 4, CHUNK), "layers 0 to 4 of a model of 3"),
        (part(5, 2, 2, CHUNK), "layers 2 to 2 of a model of 3"),
        (part(5, 1, 3, CHUNK, hidden_in=0), "it starts at layer 1 with hidden states from room 0"),
        (part(5, 0, 2, CHUNK, hidden_out=0), "it stops at layer 2 with hidden states to room 0"),
        (part(5, 2, 3, CHUNK), "room 9 has nothing of tokens 24 to 60 of sequence 1"),
        (make_step(5, CHUNK, layout=3), "composed for layout 3, layout 0 is in force"),
        (make_step(5, CHUNK, span_row=make_step(0, CHUNK).extent_row), "spans that lie elsewhere"),
    ],
)
def test_a_part_that_cannot_be_run_is_refused(loaded: LoadedModel, step: Step, detail: str) -> None:
    runner = poisoned_runner(loaded)
    run_to(runner, 0, *opens(), before())
    drain(runner)
    events = runner.receive(step) + drain(runner)
    assert (events[0].what, events[0].step, detail in events[0].detail) == ("Step", 5, True), events[0].detail


def test_rooms_are_bounded(loaded: LoadedModel) -> None:
    record_bytes = 64 + 4 * 96 * 4
    runner = poisoned_runner(loaded, rooms=TransitRooms(9, record_bytes + 8))
    run_to(runner, 0, *opens(), part(2, 0, 2, (3, 0, 5, 400), sample=[0]))
    (refused,) = drain(runner)
    assert (refused.step, "in a transit room of" in refused.detail) == (2, True)
    runner.receive(part(3, 0, 2, (3, 0, 4, 400), sample=[0]))
    drain(runner)
    assert runner.steps.rooms.rows(9) == [(3, range(4))]
    runner.receive(Close(3))
    assert runner.steps.rooms.rows(9) == []


def test_a_sequence_that_was_closed_while_it_ran_leaves_nothing_in_a_room(loaded: LoadedModel) -> None:
    runner = poisoned_runner(loaded)
    run_to(runner, 2, *opens(), part(2, 0, 2, (3, 0, 5, 400), sample=[0]))
    runner.receive(Close(3))
    drain(runner)
    assert runner.steps.rooms.rows(9) == []
