"""Positions and slots of one sequence, and when it ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.engine.execution.sequence import EngineSequence, SlotMap
from dunlin.messages.types import FinishReason
from tests.engine.commands import make_open

extents = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 40), st.integers(0, 50)), max_size=12)


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
    state = EngineSequence(make_open(tokens=[1, 2], max_tokens=max_tokens, stop_ids=stop), positions)
    assert [state.append(token) for token in range(5, 5 + len(expected))] == expected
    assert state.ended
    assert state.tokens == [1, 2, 5, 6, 7][: 2 + len(expected)]
