"""Fitted models survive JSON; damaged ones are refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.cost.load import load_timing
from dunlin.cost.models import Curve, EngineTiming, MoveModel, MoveModels, StepModel
from dunlin.cost.plain import moves_of, step_of, step_to_plain, timing_of, timing_to_plain
from dunlin.messages.types import MoveKind

PRICE = st.floats(0, 1)


@given(st.lists(PRICE, min_size=6, max_size=6), st.lists(PRICE, min_size=2, max_size=5))
def test_a_timing_survives_json(prices: list[float], heights: list[float]) -> None:
    curve = Curve(tuple(float(i) for i in range(len(heights))), tuple(sorted(heights)))
    moves = MoveModels(MoveModel(0.0, 1e9), {MoveKind.PEER_TO_SLAB: MoveModel(1e-3, 2e9)})
    timing = EngineTiming(StepModel(curve, curve, *prices), moves, 1.5, 10, 256, layers=32)
    assert timing_of(json.loads(json.dumps(timing_to_plain(timing)))) == timing


def test_a_composed_model_is_not_kept() -> None:
    with pytest.raises(TypeError, match="compose that one again"):
        timing_to_plain(load_timing("a100", "llama-2-7b"))


def test_a_negative_price_is_refused() -> None:
    plain = step_to_plain(StepModel(Curve((1.0,), (1.0,))))
    with pytest.raises(ValueError, match="negative"):
        step_of({**plain, "fixed_s": -1.0})


def test_moves_that_take_no_time_are_refused() -> None:
    with pytest.raises(ValueError, match="moves of kind default"):
        moves_of({"default": {"fixed_s": 0.0, "bytes_per_s": 0.0}})
