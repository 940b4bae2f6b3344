"""Positions and slots of one sequence, and when it ends."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.engine.execution.sequence import EngineSequence, SlotMap, ValidKv
from dunlin.messages.types import FinishReason, i64
from tests.engine.commands import make_open

COUNTS = st.lists(st.integers(0, 9), min_size=3, max_size=3)
CHANGES = st.lists(st.tuples(st.sampled_from(["set", "limit", "limit each"]), COUNTS), max_size=8)
extents = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 40), st.integers(0, 50)), max_size=12)


@given(CHANGES)
def test_valid_tokens_are_known_layer_by_layer(changes: list[tuple[str, list[int]]]) -> None:
    valid, model = ValidKv(3), [0, 0, 0]
    for change, numbers in changes:
        first, stop = sorted((numbers[0] % 4, numbers[1] % 4))
        if change == "set":
            layers = range(first, max(stop, first + 1)) if first < 3 else range(3)
            valid.set(layers, numbers[2])
            model = [numbers[2] if layer in layers else each for layer, each in enumerate(model)]
        elif change == "limit":
            valid.limit(numbers[2])
            model = [min(each, numbers[2]) for each in model]
        else:
            valid.limit_each(numbers)
            model = [min(pair) for pair in zip(model, numbers, strict=True)]
        for layers in (range(a, b) for a in range(3) for b in range(a + 1, 4)):
            assert valid.tokens(layers) == min(model[layers.start : layers.stop])


@given(extents)
def test_it_remembers_like_a_list(parts: list[tuple[int, int, int]]) -> None:
    """Each part goes to the end, or back by as much as the third number says."""
    slots = SlotMap()
    model: list[int] = []
    for start, length, back in parts:
        position = max(len(model) - back, 0) if back < 10 else len(model)
        slots.assign(position, start, length)
        model = model[:position] + list(range(start, start + length))
        assert slots.length == len(model)
        assert list(slots.slots(0, len(model))) == model
        assert list(slots.slots(len(model) // 2, len(model))) == model[len(model) // 2 :]
        assert slots.span(len(model)).slots().tolist() == model
        half = len(model) // 2
        assert not half or slots.span(half).slots().tolist() == model[:half]


def test_slots_that_follow_each_other_are_one_run() -> None:
    slots = SlotMap()
    slots.assign(0, 50, 10)
    slots.assign(10, 60, 1)
    assert list(slots.span(11).run_slot) == [50]
    runs = slots.runs
    slots.assign(11, 7, 1)
    span = slots.span(12)
    assert (list(span.run_at), list(span.run_slot)) == ([0, 11], [50, 7])
    assert slots.runs is not runs
    runs = slots.runs
    slots.assign(12, 8, 1)
    assert slots.runs is runs, "what plans are made of is made anew only where it changes"


def test_a_span_stays_what_it_was() -> None:
    slots = SlotMap()
    slots.assign(0, 50, 10)
    span = slots.span(10)
    slots.assign(3, 7, 4)
    assert span.slots().tolist() == list(range(50, 60))


def test_a_gap_is_refused() -> None:
    slots = SlotMap()
    slots.assign(0, 5, 3)
    with pytest.raises(ValueError, match="position 4 is written, but slots are known up to 3"):
        slots.assign(4, 100, 1)


@pytest.mark.parametrize(
    ("positions", "max_tokens", "stop", "expected"),
    [
        (100, 3, (), [FinishReason.RUNNING, FinishReason.RUNNING, FinishReason.LENGTH]),
        (100, 9, (6,), [FinishReason.RUNNING, FinishReason.STOP]),
        (100, 2, (6,), [FinishReason.RUNNING, FinishReason.STOP]),
        (4, 9, (), [FinishReason.RUNNING, FinishReason.LENGTH]),
    ],
)
def test_when_a_sequence_ends(
    positions: int, max_tokens: int, stop: tuple[int, ...], expected: list[FinishReason]
) -> None:
    state = EngineSequence(make_open(tokens=[1, 2], max_tokens=max_tokens, stop_ids=stop), positions, 2)
    assert [state.append(token) for token in range(5, 5 + len(expected))] == expected
    assert state.ended
    assert state.tokens == [1, 2, 5, 6, 7][: 2 + len(expected)]


# -- what is valid -------------------------------------------------------------------------------------------------


def make_sequence(**overrides: Any) -> EngineSequence:
    return EngineSequence(make_open(**overrides), 100, 4)


def test_slots_that_are_issued_hold_nothing_until_the_step_is_done() -> None:
    state = make_sequence(extent_start=i64([50]), extent_length=i64([4]))
    assert state.valid.tokens(range(4)) == 4
    state.issue(range(4), 4, [(80, 3)])
    assert (state.slots.length, state.valid.tokens(range(4))) == (7, 4)
    state.valid.set(range(4), 7)
    state.issue(range(4), 2, [(52, 2), (80, 1)])
    assert (state.slots.length, state.valid.tokens(range(4))) == (7, 2), "computed again, in the slots that it has"
    state.issue(range(4), 2, [(90, 3)])
    assert state.slots.slots(0, state.slots.length) == [50, 51, 90, 91, 92]


def test_layers_may_differ_in_what_they_hold() -> None:
    state = make_sequence()
    state.issue(range(2), 0, [(10, 6)])
    state.valid.set(range(2), 6)
    assert [state.valid.tokens(range(layer, layer + 1)) for layer in range(4)] == [6, 6, 0, 0]
    state.issue(range(2, 4), 0, [(10, 6)])
    state.valid.set(range(2, 4), 6)
    assert state.valid.tokens(range(4)) == 6
    state.issue(range(2, 4), 0, [(10, 9)])
    state.valid.set(range(2, 4), 6)
    assert state.valid.tokens(range(4)) == 6, "more slots than it needs, the first are those that it has"
    state.issue(range(2, 4), 3, [(30, 1)])
    assert [state.valid.tokens(range(layer, layer + 1)) for layer in range(4)] == [3] * 4, "the slots are others"
