"""Who meets an objective, per class, with exact times."""

from typing import Any

import pytest

from dunlin.workload.loadgen.slo import Slo, meets_slo, parse_slos
from dunlin.workload.loadgen.stats import RequestRecord, summarize


def record(ttft_s: float = 1.0, gap_s: float = 0.5, tokens: int = 3, **changes: Any) -> RequestRecord:
    """Arrives at 10 s."""
    times = [10.0 + ttft_s + i * gap_s for i in range(tokens)]
    return RequestRecord(10.0, 5, tokens, token_s=times, end_s=times[-1], **{"outcome": "ok", **changes})


@pytest.mark.parametrize(
    ("slo", "ok"),
    [
        (Slo(), True),
        (Slo(ttft=1.0), True),
        (Slo(ttft=0.99), False),
        (Slo(tpot=0.5), True),
        (Slo(tpot=0.49), False),
        (Slo(jct=2.0), True),
        (Slo(jct=1.99), False),
        (Slo(ttft=1.0, tpot=0.4), False),
    ],
)
def test_each_limit_holds(slo: Slo, ok: bool) -> None:
    assert slo.met_by(record()) is ok


def test_a_single_token_has_no_tpot_to_miss() -> None:
    assert Slo(tpot=0.001).met_by(record(tokens=1))


def test_what_failed_met_nothing() -> None:
    assert meets_slo([record(outcome="refused"), record(outcome="error")], {}) == [False, False]


def test_classes_have_their_own_and_else_the_general_one() -> None:
    records = [record(label="long"), record(label="chat"), record()]
    slos = {"": Slo(ttft=0.5), "long": Slo(ttft=5)}
    assert meets_slo(records, slos) == [True, False, False]
    assert meets_slo(records, {"long": Slo(ttft=0.1)}) == [False, True, True]


def test_limits_are_parsed_per_class() -> None:
    assert parse_slos(["ttft=2,tpot=0.1", "long:jct=30"]) == {"": Slo(2.0, 0.1), "long": Slo(jct=30.0)}
    assert parse_slos([]) == {}


@pytest.mark.parametrize("text", ["ttft", "ttft=0", "ttft=x", "ttft=inf", "speed=3", "", "chat:", "ttft=1;tpot=2"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no limit; give ttft=2,tpot=0\.1"):
        parse_slos([text])


def test_a_class_is_given_once() -> None:
    with pytest.raises(ValueError, match="class 'a' is given twice"):
        parse_slos(["a:ttft=1", "a:tpot=1"])
    with pytest.raises(ValueError, match="a limit is given twice"):
        parse_slos(["ttft=1,tpot=2,ttft=3"])


def test_goodput_counts_those_that_were_fast_enough() -> None:
    records = [record(), record(ttft_s=3.0)]
    found = summarize(records, meets_slo(records, {"": Slo(ttft=2)}))
    assert found.slo_attainment == 0.5
    assert found.goodput_per_s == 1 / 4.0  # from the arrival at 10 to the last token at 14
    assert summarize(records).slo_attainment is None
