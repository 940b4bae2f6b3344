"""Times of the modelled engine: linear ones exactly, and unsteady ones over the pieces of the record."""

import pytest

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import UNSTEADINESS_PIECE_S, ZERO, BatchCounts, StepModel
from dunlin.messages.types import TransferKind
from simulator.engine.timing import LinearTiming, UnsteadyTiming

PIECE_S = UNSTEADINESS_PIECE_S
DECODE = BatchCounts(decode_rows=1)


def timing(pieces: float, *ratios: float) -> EngineTiming:
    """Steps of so many pieces of the record."""
    moves = TransferModels(TransferModel(0.001, 1e9))
    return EngineTiming(StepModel(ZERO, fixed_s=pieces * PIECE_S), moves, 7.0, 64, 64, unsteadiness=ratios)


def test_a_linear_step_counts_new_tokens_and_decode_rows() -> None:
    linear = LinearTiming(fixed_s=0.5, token_s=0.25)
    batch = BatchCounts(prefill_rows=2, prefill_tokens=6, prefix_products=99, decode_rows=4, decode_context=999)
    assert linear.step_s(batch) == 0.5 + 0.25 * 10
    assert linear.step_s(BatchCounts()) == 0.5


def test_a_linear_move_counts_bytes_of_either_kind() -> None:
    linear = LinearTiming(per_move_s=0.5, move_byte_s=0.125)
    assert [linear.move_s(kind, 8) for kind in (TransferKind.SLAB_TO_HOST, TransferKind.HOST_TO_SLAB)] == [1.5, 1.5]


def test_without_a_record_a_step_is_steady() -> None:
    unsteady = UnsteadyTiming(timing(4.0), slowness=3.0)
    assert [unsteady.step_s(DECODE) for _ in range(3)] == pytest.approx([12 * PIECE_S] * 3)


def test_a_step_takes_the_ratios_of_the_pieces_that_it_covers() -> None:
    unsteady = UnsteadyTiming(timing(1.5, 1.0, 2.0, 4.0))
    taken = [unsteady.step_s(DECODE) / PIECE_S for _ in range(3)]
    assert taken == pytest.approx([1.0 + 0.5 * 2.0, 0.5 * 2.0 + 4.0, 1.0 + 0.5 * 2.0])


def test_the_record_begins_where_it_is_told() -> None:
    assert UnsteadyTiming(timing(1.0, 1.0, 2.0, 3.0, 4.0), start=0.5).step_s(DECODE) == pytest.approx(3 * PIECE_S)


def test_engines_with_one_timing_follow_one_record() -> None:
    shared = UnsteadyTiming(timing(1.0, 1.0, 5.0))
    assert [round(shared.step_s(DECODE) / PIECE_S, 6) for _ in range(4)] == [1.0, 5.0, 1.0, 5.0]


def test_slowness_leaves_moves_and_the_load_alone() -> None:
    unsteady = UnsteadyTiming(timing(1.0, 9.0), slowness=5.0)
    assert unsteady.load_s == 7.0
    assert unsteady.move_s(TransferKind.SLAB_TO_HOST, 1000) == pytest.approx(0.001 + 1e-6)
