"""Cost models: exact values, monotone in every count, never negative, and fair errors."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import (
    BatchCounts,
    EngineOverhead,
    PiecewiseCurve,
    StepModel,
    StepWithOverhead,
    compute_bound_tokens,
)
from dunlin.messages.types import TransferKind

COUNTS = [field.name for field in fields(BatchCounts)]


def step_model(**overrides: object) -> StepModel:
    model = StepModel(
        tokens=PiecewiseCurve((1.0, 64.0, 1024.0), (0.010, 0.011, 0.059)),
        rows=PiecewiseCurve((0.0, 1.0), (0.0, 1e-5)),
        fixed_s=1e-4,
        product_s=1e-9,
        prefix_s=2e-10,
        prefill_row_s=3e-6,
        decode_row_s=2e-6,
        decode_context_s=5e-8,
        sampled_row_s=4e-6,
    )
    return replace(model, **overrides)  # type: ignore[arg-type]


def test_a_batch_counts_what_its_rows_compute() -> None:
    batch = BatchCounts()
    batch.add_prefill(100, prefix=50)
    batch.add_prefill(10)
    batch.add_decode(7)
    assert batch == BatchCounts(2, 110, 5000, 10100, 1, 7)


def test_a_curve_is_flat_before_and_straight_beyond_its_knots() -> None:
    curve = PiecewiseCurve((1.0, 2.0, 4.0), (1.0, 3.0, 4.0))
    assert [curve.at(x) for x in (0, 1, 1.5, 2, 3, 4, 6)] == [1.0, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0]


@pytest.mark.parametrize(
    ("x", "y"),
    [((), ()), ((1.0,), ()), ((1.0, 1.0), (0.0, 1.0)), ((1.0, 2.0), (1.0, 0.5)), ((1.0,), (-1.0,))],
)
def test_a_curve_refuses_knots_that_do_not_rise(x: tuple[float, ...], y: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="curve"):
        PiecewiseCurve(x, y)


def test_a_step_is_the_sum_of_its_terms() -> None:
    batch = BatchCounts()
    batch.add_prefill(63, prefix=10)
    batch.add_decode(1000)
    pairs = 63 * 10 + (63 * 63 + 63) / 2
    expected = 1e-4 + 0.011 + 2e-5 + 1e-9 * pairs + 2e-10 * 630 + 3e-6 + 2e-6 + 5e-8 * 1000
    assert step_model().step_s(batch) == pytest.approx(expected, rel=1e-12)


def test_a_row_with_a_temperature_takes_longer() -> None:
    greedy, drawn = BatchCounts(0, 0, 0, 0, 3, 900), BatchCounts(0, 0, 0, 0, 3, 900, sampled_rows=2)
    assert step_model().step_s(drawn) - step_model().step_s(greedy) == pytest.approx(8e-6)


def test_an_empty_step_takes_no_time() -> None:
    assert step_model().step_s(BatchCounts()) == 0.0


@given(st.lists(st.integers(0, 10**6), min_size=6, max_size=6), st.sampled_from(COUNTS), st.integers(1, 10**6))
def test_more_of_anything_never_takes_less(counts: list[int], name: str, more: int) -> None:
    model, batch = step_model(), BatchCounts(*counts)
    larger = replace(batch, **{name: getattr(batch, name) + more})
    assert 0.0 <= model.step_s(batch) <= model.step_s(larger)


def test_moves_fall_back_to_the_default() -> None:
    moves = TransferModels(TransferModel(1e-3, 1e9), {TransferKind.SLAB_TO_HOST: TransferModel(2e-3, 2e9)})
    assert moves.move_s(TransferKind.SLAB_TO_HOST, 2_000_000) == pytest.approx(3e-3)
    assert moves.move_s(TransferKind.PEER_TO_SLAB, 2_000_000) == pytest.approx(3e-3)


def test_bytes_beyond_the_near_ones_take_longer() -> None:
    move = TransferModel(1e-3, 1e9, near_bytes=1e6, far_byte_s=2e-9)
    assert move.move_s(1_000_000) == pytest.approx(2e-3)
    assert move.move_s(1_500_000) == pytest.approx(2e-3 + 0.5e-3 * 3)


def test_a_hosts_overhead_is_paid_per_step_and_more_with_a_prompt() -> None:
    kernels = step_model()
    hosted = StepWithOverhead(kernels, EngineOverhead(0.5, 0.25))
    decode, prompt = BatchCounts(decode_rows=2, decode_context=9), BatchCounts(1, 4, 0, 16, 2, 9)
    assert hosted.step_s(BatchCounts()) == 0.0
    assert hosted.step_s(decode) == kernels.step_s(decode) + 0.5
    assert hosted.step_s(prompt) == kernels.step_s(prompt) + 0.75


@pytest.mark.parametrize("times", [(-1.0, 0.0), (0.0, -1.0), (float("nan"), 0.0), (0.0, float("inf"))])
def test_an_overhead_is_a_time(times: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="finite time"):
        EngineOverhead(*times)


def test_a_step_turns_compute_bound_where_arithmetic_takes_as_long_as_the_weights() -> None:
    """10 ms for the weights, 0.05 ms per token: 200 tokens; a jump on the way does not matter."""
    assert compute_bound_tokens(PiecewiseCurve((1.0, 200.0, 400.0), (0.01, 0.01, 0.02))) == 200
    assert (
        compute_bound_tokens(PiecewiseCurve((1.0, 8.0, 9.0, 200.0, 400.0), (0.01, 0.01, 0.0102, 0.0105, 0.0205))) == 200
    )
    assert compute_bound_tokens(PiecewiseCurve((0.0, 100.0), (0.0, 0.1)), fixed_s=0.02) == 21
    assert compute_bound_tokens(PiecewiseCurve((1.0, 9.0), (0.5, 0.5))) is None
