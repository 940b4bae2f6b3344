"""Parked rows: bounds, claims, and what is given back."""

import pytest
import torch

from dunlin.engine.decoder.row_progress import RowProgress
from dunlin.engine.execution.parked_rows import ParkedRow, ParkedRows
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.engine.execution.step_batch import StepError, StepRow
from tests.engine.commands import make_open


def make_parked(sequence: int, layer: int = 1, block: int = 0, tokens: int = 4, stop: int = 3) -> ParkedRow:
    state = EngineSequence(make_open(sequence, range(tokens)), 100, 3)
    hidden = torch.zeros(tokens, 8)
    progress = RowProgress(layer, block, tokens, 0, hidden, torch.zeros(tokens, 2, 4))
    return ParkedRow(StepRow(sequence, state, 0, tokens, True), progress, range(stop))


SIZE = 4 * 8 * 4 * 2
"""Bytes of a parked row: its hidden states and its queries."""


def test_rows_are_kept_up_to_a_number_and_up_to_bytes() -> None:
    few, small = ParkedRows(2, 10 * SIZE), ParkedRows(10, 2 * SIZE)
    for parked in (few, small):
        assert [parked.park(make_parked(sequence)) for sequence in (1, 2, 3)] == [True, True, False]
        assert (len(parked), parked.size_bytes, 3 in parked) == (2, 2 * SIZE, False)
        assert parked.remove(1) is not None
        assert parked.remove(1) is None
        assert parked.size_bytes == SIZE
        assert parked.park(make_parked(3))


def test_a_claimed_row_counts_until_its_step_takes_it() -> None:
    parked = ParkedRows(1, SIZE)
    parked.park(make_parked(1))
    parked.claim([1])
    assert not parked.park(make_parked(2))
    assert not parked.is_discardable(1)
    with pytest.raises(StepError, match="sequence 1 has no parked row"):
        parked.claim([1])
    parked.unclaim([1])
    assert parked.is_discardable(1)
    parked.claim([1])
    assert parked.remove(1) is not None
    parked.park(make_parked(1))
    assert parked.is_discardable(1), "the claim was of the row that is gone"


@pytest.mark.parametrize("other", [{"layer": 2}, {"block": 1}, {"stop": 2}])
def test_rows_at_different_places_are_not_claimed(other: dict[str, int]) -> None:
    parked = ParkedRows(9, 9 * SIZE)
    for row in (make_parked(1), make_parked(2), make_parked(3, **other)):
        parked.park(row)
    with pytest.raises(StepError, match="different places"):
        parked.claim([1, 3])
    with pytest.raises(StepError, match="sequence 7 has no"):
        parked.claim([1, 7])
    parked.claim([2, 1])
