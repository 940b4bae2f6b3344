"""Arrival processes have the rate and the burstiness they were asked for, and a seed always gives the same times."""

import statistics
from itertools import islice, pairwise

import pytest

from dunlin.workload.arrivals import gamma, on_off, poisson, until


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise([0.0, *times])]


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gamma_has_its_rate_and_cv(cv: float) -> None:
    found = gaps(list(islice(gamma(4.0, cv, seed=1), 40_000)))
    assert statistics.fmean(found) == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(found) / statistics.fmean(found) == pytest.approx(cv, rel=0.05)


def test_poisson_is_gamma_of_cv_1() -> None:
    assert list(islice(poisson(3, 7), 50)) == list(islice(gamma(3, 1, 7), 50))


def test_a_seed_fixes_the_times() -> None:
    assert until(poisson(5, 1), 10) == until(poisson(5, 1), 10)
    assert until(poisson(5, 1), 10) != until(poisson(5, 2), 10)


def test_on_off_is_silent_when_off() -> None:
    times = until(on_off(20, 0, on_s=2, off_s=3, seed=1), 500)
    assert all(at % 5 < 2 for at in times)
    assert len(times) == pytest.approx(100 * 2 * 20, rel=0.1)
    assert times == sorted(times)


def test_on_off_has_both_rates() -> None:
    times = until(on_off(20, 5, on_s=2, off_s=3, seed=1), 1000)
    assert sum(at % 5 >= 2 for at in times) == pytest.approx(200 * 3 * 5, rel=0.1)


@pytest.mark.parametrize("bad", [(0, 1), (-1, 1), (1, 0), (float("nan"), 1)])
def test_senseless_parameters_are_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        gamma(*bad, seed=1)
    with pytest.raises(ValueError, match="ON/OFF"):
        on_off(bad[0], 0, bad[1], 1, seed=1)
