"""Arrival processes have the rate and the burstiness they were asked for, and a seed always gives the same times."""

import statistics
from itertools import islice, pairwise

import pytest

from dunlin.workload.traffic.arrival_processes import arrivals_until, gamma_arrivals, on_off_arrivals, poisson_arrivals


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise([0.0, *times])]


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gamma_has_its_rate_and_cv(cv: float) -> None:
    found = gaps(list(islice(gamma_arrivals(4.0, cv, seed=1), 40_000)))
    assert statistics.fmean(found) == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(found) / statistics.fmean(found) == pytest.approx(cv, rel=0.05)


def test_poisson_is_gamma_of_cv_1() -> None:
    assert list(islice(poisson_arrivals(3, 7), 50)) == list(islice(gamma_arrivals(3, 1, 7), 50))


def test_a_seed_fixes_the_times() -> None:
    assert arrivals_until(poisson_arrivals(5, 1), 10) == arrivals_until(poisson_arrivals(5, 1), 10)
    assert arrivals_until(poisson_arrivals(5, 1), 10) != arrivals_until(poisson_arrivals(5, 2), 10)


def test_on_off_is_silent_when_off() -> None:
    times = arrivals_until(on_off_arrivals(20, 0, on_s=2, off_s=3, seed=1), 500)
    assert all(at % 5 < 2 for at in times)
    assert len(times) == pytest.approx(100 * 2 * 20, rel=0.1)
    assert times == sorted(times)


def test_on_off_has_both_rates() -> None:
    times = arrivals_until(on_off_arrivals(20, 5, on_s=2, off_s=3, seed=1), 1000)
    assert sum(at % 5 >= 2 for at in times) == pytest.approx(200 * 3 * 5, rel=0.1)


@pytest.mark.parametrize("bad", [(0, 1), (-1, 1), (1, 0), (float("nan"), 1)])
def test_senseless_parameters_are_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        gamma_arrivals(*bad, seed=1)
    with pytest.raises(ValueError, match="ON/OFF"):
        on_off_arrivals(bad[0], 0, bad[1], 1, seed=1)
