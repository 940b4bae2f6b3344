"""Objectives that a request asks for: refused by name below the operator's least, and passed on to the instance."""

import pytest

from dunlin.messages.dispatch import Place
from dunlin.messages.door import RejectionCode, SubmitRejected
from services.dispatcher.admission.objectives import objectives_error
from services.dispatcher.config import ObjectiveBoundsConfig
from tests.services.dispatcher.factories import A, Bench, client, member, only, submit

BOUNDS = ObjectiveBoundsConfig(least_ttft_s=0.5, least_tpot_s=0.05)


@pytest.mark.parametrize(("ttft_s", "tpot_s"), [(None, None), (0.5, 0.05), (9.0, None), (None, 9.0)])
def test_what_is_not_below_the_least_is_allowed(ttft_s: float | None, tpot_s: float | None) -> None:
    assert objectives_error(ttft_s, tpot_s, BOUNDS) is None


@pytest.mark.parametrize(
    ("ttft_s", "tpot_s", "text"),
    [
        (0.49, None, "ttft_objective_s: must be at least 0.5 here, not 0.49"),
        (0.5, 0.049, "tpot_objective_s: must be at least 0.05 here, not 0.049"),
        (float("nan"), None, "ttft_objective_s: must be at least 0.5 here, not nan"),
    ],
)
def test_what_is_below_is_named(ttft_s: float | None, tpot_s: float | None, text: str) -> None:
    assert str(objectives_error(ttft_s, tpot_s, BOUNDS)) == text


def test_a_request_that_asks_for_less_is_refused_and_another_carries_its_own() -> None:
    bench = Bench(objectives__least_ttft_s=0.2, objectives__least_tpot_s=0.02).fleet(member(A))
    refused = only(bench.give(client("a"), submit(tpot_objective_s=0.01)), SubmitRejected)
    assert (refused.code, refused.field) == (RejectionCode.INVALID, "tpot_objective_s")
    assert refused.detail == "tpot_objective_s: must be at least 0.02 here, not 0.01"
    place = only(bench.give(client("b"), submit(ttft_objective_s=0.2, tpot_objective_s=3.0)), Place)
    assert (place.ttft_objective_s, place.tpot_objective_s) == (0.2, 3.0)
    plain = only(bench.give(client("c"), submit()), Place)
    assert (plain.ttft_objective_s, plain.tpot_objective_s) == (0.0, 0.0), "the cluster's"


def test_what_another_dispatcher_let_in_is_not_refused_here() -> None:
    bench = Bench().fleet(member(A))
    sent = bench.give(client("a"), submit(key="req-7-1", ttft_objective_s=0.01))
    assert not [each for each in sent if isinstance(each.message, SubmitRejected)]
