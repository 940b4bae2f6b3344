"""Equation 7 by strategy: what it asks for, what it refuses, and that which ships."""

from typing import Any

import pytest

from dunlin.cost.models import BatchCounts, EngineOverhead
from dunlin.cost.strategies import PrefillModel, Strategies, Strategy, StrategyError
from dunlin.cost.strategy_files import find_strategies

LOONGSERVE = find_strategies("a800-lwm-7b")


def prefill(*lengths: int, prefix: int = 0) -> BatchCounts:
    batch = BatchCounts()
    for length in lengths:
        batch.add_prefill(length, prefix)
    return batch


def strategies(**changes: Any) -> Strategies:
    prices = {Strategy(1, 2): PrefillModel(1.0, 0.5, 0.25)}
    return Strategies(
        **{"name": "m", "title": "", "shape": "s", "prefill": prices, "overhead": EngineOverhead(), **changes}
    )


def test_lengths_and_squares_are_priced() -> None:
    assert strategies().step_s(Strategy(1, 2), prefill(2, 4)) == 1.0 + 0.5 * 6 + 0.25 * 20
    assert strategies().step_s(Strategy(1, 2), BatchCounts()) == 0.0


def test_chunks_add_up_to_the_whole_but_for_what_each_costs_anew() -> None:
    model = PrefillModel(1.0, 0.5, 0.25)
    parts = model.step_s(prefill(300)) + model.step_s(prefill(200, prefix=300))
    assert parts == model.step_s(prefill(500)) + 1.0


def test_an_unknown_strategy_and_decode_rows_are_refused() -> None:
    with pytest.raises(StrategyError, match="m was not measured as sp2-tp2; known: sp1-tp2"):
        strategies().step_s(Strategy(2, 2), prefill(1))
    with pytest.raises(ValueError, match="3 decode rows"):
        strategies().step_s(Strategy(1, 2), BatchCounts(1, 5, 0, 25, 3, 9))


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        PrefillModel(0.0, -1e-9, 0.0)


def test_many_short_prompts_want_sequence_and_one_long_one_tensor_parallelism() -> None:
    """As LoongServe measured it: 512 prompts of 1,000 tokens and one of 500,000, on the same 8 GPUs."""
    short, long = prefill(*[1000] * 512), prefill(500_000)
    assert LOONGSERVE.step_s(Strategy(4, 2), short) < LOONGSERVE.step_s(Strategy(1, 8), short)
    assert LOONGSERVE.step_s(Strategy(4, 2), long) > LOONGSERVE.step_s(Strategy(1, 8), long)
