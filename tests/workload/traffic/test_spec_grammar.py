"""The grammar of workloads, apart from what they mean."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.workload.traffic.spec_grammar import WorkloadError, parse_call, parse_part, split_mix


def test_a_part_has_a_kind_values_and_named_values() -> None:
    call = parse_part("poisson: 4, duration = 3 ,lengths=mixed(2*fixed(1,2),a=b.csv)")
    assert (call.name, call.values) == ("poisson", ["4"])
    assert call.named == {"duration": "3", "lengths": "mixed(2*fixed(1,2),a=b.csv)"}


def test_a_call_may_be_bare_and_nest() -> None:
    assert parse_call("fixed", "…").values == []
    assert parse_call("mixed(2*fixed(1,2),3*zipf(1,low=2,high=3))", "…").values == [
        "2*fixed(1,2)",
        "3*zipf(1,low=2,high=3)",
    ]


def test_a_mix_is_parted_where_a_plus_stands_alone() -> None:
    assert split_mix("poisson:1 + trace:a+b.csv") == ["poisson:1", "trace:a+b.csv"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("p:a=1,a=2", "a is given twice"),
        ("p:f(1", r"a \( without its \)"),
        ("p:f)1", r"a \) without its \( at 'f\)'"),
    ],
)
def test_the_grammar_complains_with_the_text(text: str, complaint: str) -> None:
    with pytest.raises(WorkloadError, match=rf"workload '{text.replace('(', '.').replace(')', '.')}': {complaint}"):
        parse_part(text)


def test_values_are_placed_in_order_and_numbers_checked() -> None:
    call = parse_part("p:4,b=x").place("a", "b")
    assert call.number("a") == 4.0
    with pytest.raises(WorkloadError, match="b must be a number above 0, not 'x'"):
        call.number("b")
    with pytest.raises(WorkloadError, match=r"p needs c=…"):
        call.number("c")
    with pytest.raises(WorkloadError, match="at most 1 values"):
        parse_part("p:1,2").place("a")
    with pytest.raises(WorkloadError, match="a is given twice"):
        parse_part("p:1,a=2").place("a")


@pytest.mark.parametrize("value", ["0", "nan", "inf", "-1", "1e999", ""])
def test_no_number_that_cannot_be(value: str) -> None:
    with pytest.raises(WorkloadError, match="a"):
        parse_part(f"p:a={value}").number("a")


@pytest.mark.parametrize("value", ["0", "1.5", "x", "1e9", "99999999999999"])
def test_no_whole_number_that_cannot_be(value: str) -> None:
    with pytest.raises(WorkloadError, match="a must be a whole number from 1"):
        parse_part(f"p:a={value}").whole("a")


def test_an_unknown_name_is_refused() -> None:
    call = parse_part("p:a=1,speling=2")
    call.number("a")
    with pytest.raises(WorkloadError, match="p knows no speling; it takes a"):
        call.finish()


@given(st.text("pa:=,()+*1. ", max_size=30))
def test_any_text_parses_or_complains(text: str) -> None:
    for part in split_mix(text):
        with suppress(WorkloadError):
            assert parse_part(part).source == part
