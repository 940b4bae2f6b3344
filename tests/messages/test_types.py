"""Columns of numbers, and the defaults of the nouns that several conversations share."""

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from dunlin.messages.types import Priority, Region, SamplingParams, TransferKind, Why, f32, i8, i32, i64


@pytest.mark.parametrize(
    ("make", "least", "most"),
    [(i8, -(1 << 7), (1 << 7) - 1), (i32, -(1 << 31), (1 << 31) - 1), (i64, -(1 << 63), (1 << 63) - 1)],
)
def test_a_column_of_integers_holds_its_whole_range_and_no_more(
    make: Callable[..., "array[int]"], least: int, most: int
) -> None:
    assert list(make([least, 0, most])) == [least, 0, most]
    for outside in (least - 1, most + 1):
        with pytest.raises(OverflowError):
            make([outside])


def test_the_items_of_columns_have_the_sizes_of_the_wire() -> None:
    """A column's bytes travel as they are."""
    assert [make([1]).tobytes() for make in (i8, i32, i64)] == [b"\1", b"\1" + bytes(3), b"\1" + bytes(7)]
    assert f32([1.0]).tobytes() == b"\0\0\x80\x3f"


def test_floats_are_rounded_to_single_precision() -> None:
    assert list(f32([0.1])) != [0.1]
    assert list(f32([0.1])) == pytest.approx([0.1], rel=1e-7)


@pytest.mark.parametrize("make", [i8, i32, i64, f32])
def test_an_empty_column_is_new_each_time(make: Callable[..., Any]) -> None:
    first, second = make(), make()
    first.append(1)
    assert (len(first), len(second)) == (1, 0)


def test_sampling_by_default_filters_and_penalises_nothing() -> None:
    plain = SamplingParams()
    assert (plain.temperature, plain.top_k, plain.top_p, plain.min_p) == (1.0, 0, 1.0, 0.0)
    assert (plain.presence_penalty, plain.frequency_penalty, plain.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (plain.logprobs, len(plain.bias_tokens), len(plain.bias_values)) == (None, 0, 0)
    assert SamplingParams().bias_tokens is not plain.bias_tokens


def test_transfers_are_ordered_activations_first_and_parameters_last() -> None:
    assert sorted(Priority) == [Priority.ACTIVATION, Priority.KV, Priority.CHECKPOINT, Priority.PARAMETERS]


def test_nouns_are_equal_and_hashed_by_value() -> None:
    assert len({Region(0, 2, 0, 9), Region(0, 2, 0, 9), Region(0, 2, 1, 9)}) == 2
    assert Why("policy") == Why("policy", "", (), ())
    assert {TransferKind(number) for number in range(4)} == set(TransferKind)
