"""The doors' cost is measured: a small run, without thresholds on times."""

import pytest

from benchmarks.doors.token_cost import NAMES, TokenCost, TokenCostCampaign, TokenCostPlan, numbers, run
from benchmarks.harness.report import BenchmarkResult

FREE = {"grpc": 0.0, "sse": 0.0}


def test_a_small_run_measures_every_way() -> None:
    outcome = run(TokenCostPlan((2,), 12, 1, 0.002, FREE))
    assert not outcome.failures
    for name in NAMES.values():
        median, least, most = outcome.figures[f"2 streams, {name} (µs a token: median, least, most)"]
        assert 0 < least <= median <= most
    # The instance makes 12 tokens; a door adds an event of its own and may put some together.
    assert 2 / 12 <= outcome.figures["2 streams, gRPC door: events a token"] <= 13 / 12
    assert 1 / 12 <= outcome.figures["2 streams, SSE door: events a token"] <= 13 / 12


def conclusion(most_us: dict[str, float]) -> BenchmarkResult:
    outcome = BenchmarkResult("")
    found = {way: [TokenCost(us, 1.0) for us in (90.0, 30.0, 50.0)] for way in NAMES}
    campaign = TokenCostCampaign(TokenCostPlan((4,), 1, 3, 0.1, most_us), None, None, outcome)  # type: ignore[arg-type]  # not used
    campaign._conclude(4, found)
    return outcome


def test_figures_are_medians_and_a_dear_door_is_told() -> None:
    assert conclusion(FREE).figures["4 streams, SSE door (µs a token: median, least, most)"] == (50.0, 30.0, 90.0)
    assert not conclusion(FREE).failures
    assert conclusion({"grpc": 40.0, "sse": 80.0}).failures == [
        "gRPC door, 4 streams: 50.0 µs a token, at most 40 wanted"
    ]


@pytest.mark.parametrize("text", ["", "0", "16,", "16,-1", "x"])
def test_numbers_of_streams_are_above_zero(text: str) -> None:
    assert numbers("16,64") == (16, 64)
    with pytest.raises(ValueError, match=r"invalid literal|not above 0"):
        numbers(text)
