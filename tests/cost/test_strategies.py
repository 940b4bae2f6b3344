"""Equation 7 by strategy: what it asks for, what it refuses, and that which ships."""

import json
from typing import Any

import pytest

from dunlin.cost.device import DeviceError
from dunlin.cost.models import BatchCounts, EngineOverhead
from dunlin.cost.strategies import PrefillModel, Strategies, Strategy, StrategyError
from dunlin.cost.strategy_files import find_strategies, known_strategies, parse_overhead, parse_strategies

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


def test_those_that_ship_know_where_they_come_from() -> None:
    assert known_strategies() == ["a800-lwm-7b"]
    assert LOONGSERVE.known() == [Strategy(1, 8), Strategy(2, 4), Strategy(4, 2)]
    assert LOONGSERVE.sources[0].licence == "Apache-2.0"


def test_many_short_prompts_want_sequence_and_one_long_one_tensor_parallelism() -> None:
    """As LoongServe measured it: 512 prompts of 1,000 tokens and one of 500,000, on the same 8 GPUs."""
    short, long = prefill(*[1000] * 512), prefill(500_000)
    assert LOONGSERVE.step_s(Strategy(4, 2), short) < LOONGSERVE.step_s(Strategy(1, 8), short)
    assert LOONGSERVE.step_s(Strategy(4, 2), long) > LOONGSERVE.step_s(Strategy(1, 8), long)


def test_strategies_survive_json_and_damage_is_named() -> None:
    plain = json.loads(json.dumps(LOONGSERVE.as_json()))
    assert parse_strategies(plain) == LOONGSERVE
    with pytest.raises(DeviceError, match="strategies of a800-lwm-7b are damaged"):
        parse_strategies({**plain, "prefill": {"1-8": {}}})
    with pytest.raises(DeviceError, match="no strategies are called 'b300'; known: a800-lwm-7b"):
        find_strategies("b300")


def test_an_overhead_is_named_or_said_in_milliseconds() -> None:
    assert parse_overhead("A800-LWM-7B") == LOONGSERVE.overhead
    assert parse_overhead("1.5") == EngineOverhead(0.0015)
    assert parse_overhead("1.5,6") == EngineOverhead(0.0015, 0.006)


@pytest.mark.parametrize("text", ["", "fast", "1,2,3", "-1", "nan", "1;2"])
def test_what_is_no_overhead_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no overhead: give MS, MS,MS .* or a name \(a800-lwm-7b\)"):
        parse_overhead(text)
