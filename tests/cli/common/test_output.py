"""JSON and tables."""

import json
from dataclasses import dataclass

import pytest

from cli.common.output import as_json, table, to_json_value
from dunlin.effects import Address
from dunlin.messages.types import FinishReason, f32, i64


@dataclass(frozen=True)
class Thing:
    where: Address
    finish: FinishReason
    numbers: object
    data: bytes = b"\x00\xff"


def test_json_fits_on_a_line() -> None:
    assert as_json({"a": [1, 2]}, indent=None) == '{"a": [1, 2]}'


def test_messages_become_json() -> None:
    thing = Thing(Address("instance", "i", 3), FinishReason.STOP, {"a": i64([1, 2]), "b": (f32([0.5]), None)})
    assert json.loads(as_json(thing)) == {
        "where": {"role": "instance", "name": "i", "incarnation": 3},
        "finish": "stop",
        "numbers": {"a": [1, 2], "b": [[0.5], None]},
        "data": "00ff",
    }


def test_what_never_came_is_null() -> None:
    assert as_json({"p99": float("inf"), "p50": 1.5}, indent=None) == '{"p99": null, "p50": 1.5}'


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_what_is_no_json_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        as_json({"x": value})


def test_plain_values_stay() -> None:
    assert to_json_value([1, 2.5, "a", None, True]) == [1, 2.5, "a", None, True]


def test_columns_line_up_and_numbers_are_flush_right() -> None:
    assert table(("name", "n"), [("a", "5"), ("long one", "123")]) == "name        n\na           5\nlong one  123"


def test_a_table_without_rows_is_its_header() -> None:
    assert table(("name", "n"), []) == "name  n"
