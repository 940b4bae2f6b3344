"""Strategies and overheads that ship: read, named, and refused with what is known."""

import json

import pytest

from dunlin.cost.device import DeviceError
from dunlin.cost.strategies import Strategy
from dunlin.cost.strategy_files import find_strategies, known_strategies, parse_strategies

LOONGSERVE = find_strategies("a800-lwm-7b")


def test_those_that_ship_know_where_they_come_from() -> None:
    assert known_strategies() == ["a800-lwm-7b"]
    assert LOONGSERVE.known() == [Strategy(1, 8), Strategy(2, 4), Strategy(4, 2)]
    assert LOONGSERVE.sources[0].licence == "Apache-2.0"


def test_strategies_survive_json_and_damage_is_named() -> None:
    plain = json.loads(json.dumps(LOONGSERVE.as_json()))
    assert parse_strategies(plain) == LOONGSERVE
    with pytest.raises(DeviceError, match="strategies of a800-lwm-7b are damaged"):
        parse_strategies({**plain, "prefill": {"1-8": {}}})
    with pytest.raises(DeviceError, match="no strategies are called 'b300'; known: a800-lwm-7b"):
        find_strategies("b300")
