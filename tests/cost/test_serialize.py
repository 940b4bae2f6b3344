"""Fitted models survive JSON; damaged ones are refused."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.interrupts import InterruptTimes, LayerPieces
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import PiecewiseCurve, StepModel
from dunlin.cost.processes import MessageCosts, ProcessCosts
from dunlin.cost.serialize import (
    parse_process_costs,
    parse_step,
    parse_timing,
    parse_transfers,
    serialize_step,
    serialize_timing,
)
from dunlin.cost.timing_loader import load_timing
from dunlin.messages.types import TransferKind

PRICE = st.floats(0, 1)


@given(st.lists(PRICE, min_size=7, max_size=7), st.lists(PRICE, min_size=2, max_size=5))
def test_a_timing_survives_json(prices: list[float], heights: list[float]) -> None:
    curve = PiecewiseCurve(tuple(float(i) for i in range(len(heights))), tuple(sorted(heights)))
    moves = TransferModels(TransferModel(0.0, 1e9), {TransferKind.PEER_TO_SLAB: TransferModel(1e-3, 2e9, 1e6, 1e-10)})
    interrupts = InterruptTimes(1e-3, 4, measured=(LayerPieces(0.004, (0.0, 0.5)),), answer_token_s=1e-6)
    timing = EngineTiming(StepModel(curve, curve, *prices), moves, 1.5, 10, 256, layers=32, interrupts=interrupts)
    assert parse_timing(json.loads(json.dumps(serialize_timing(timing)))) == timing


def test_the_unsteadiness_is_kept_to_a_thousandth() -> None:
    curve = PiecewiseCurve((1.0,), (1.0,))
    moves = TransferModels(TransferModel(0.0, 1e9), {})
    timing = EngineTiming(StepModel(curve, curve), moves, 1.5, 10, 256, unsteadiness=(1.23456, 0.9996))
    plain = serialize_timing(timing)
    assert plain["unsteadiness"] == [1.235, 1.0]
    assert parse_timing(plain).unsteadiness == (1.235, 1.0)


def test_a_composed_model_is_not_kept() -> None:
    with pytest.raises(TypeError, match="compose that one again"):
        serialize_timing(load_timing("a100", "llama-2-7b"))


def test_a_negative_price_is_refused() -> None:
    plain = serialize_step(StepModel(PiecewiseCurve((1.0,), (1.0,))))
    with pytest.raises(ValueError, match="negative"):
        parse_step({**plain, "fixed_s": -1.0})


def test_an_older_profile_knows_no_rows_with_a_temperature() -> None:
    model = StepModel(PiecewiseCurve((1.0,), (1.0,)), decode_row_s=0.5)
    plain = serialize_step(model)
    del plain["sampled_row_s"]
    assert parse_step(plain) == model
    with pytest.raises(ValueError, match="negative"):
        parse_step({**plain, "sampled_row_s": -1.0})


def test_an_older_profile_says_nothing_of_interrupts_and_a_wrong_one_is_refused() -> None:
    curve = PiecewiseCurve((1.0,), (1.0,))
    timing = EngineTiming(StepModel(curve, curve), TransferModels(TransferModel(0.0, 1e9), {}), 1.5, 10, 256)
    plain = serialize_timing(timing)
    assert parse_timing({name: value for name, value in plain.items() if name != "interrupts"}) == timing
    with pytest.raises(ValueError, match="no engine answers interrupts so"):
        parse_timing({**plain, "interrupts": {"layer_safepoints": 0}})
    with pytest.raises(ValueError, match="no engine answers interrupts so"):
        parse_timing({**plain, "interrupts": {"answer_token_s": -1e-9}})
    with pytest.raises(ValueError, match="no layer is cut so"):
        parse_timing({**plain, "interrupts": {"measured": [{"layer_s": 0.004, "starts": [0.5, 0.0]}]}})


def test_an_older_profile_says_neither_what_tokens_cost_an_answer_nor_what_far_bytes_cost_a_move() -> None:
    curve = PiecewiseCurve((1.0,), (1.0,))
    timing = EngineTiming(StepModel(curve, curve), TransferModels(TransferModel(0.1, 1e9), {}), 1.5, 10, 256)
    plain = serialize_timing(timing)
    del plain["interrupts"]["answer_token_s"], plain["moves"]["default"]["near_bytes"]
    del plain["moves"]["default"]["far_byte_s"]
    assert parse_timing(plain) == timing


def test_costs_of_processes_survive_json_and_older_ones_say_nothing_of_control() -> None:
    costs = ProcessCosts(MessageCosts(1e-6, 2e-6, 3e-6, 0.25), MessageCosts(4e-6), 5e-6, True, MessageCosts(6e-6, 7e-6))
    plain = json.loads(json.dumps(asdict(costs)))
    assert parse_process_costs(plain) == costs
    del plain["control"]
    assert parse_process_costs(plain) == ProcessCosts(costs.instance, costs.door, 5e-6, True)


@pytest.mark.parametrize("wrong", [{"bytes_per_s": 0.0}, {"near_bytes": -1.0}, {"far_byte_s": -1e-12}])
def test_moves_that_take_no_time_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="moves of kind default"):
        parse_transfers({"default": {"fixed_s": 0.0, "bytes_per_s": 1e9, **wrong}})
