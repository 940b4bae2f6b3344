"""Arrival processes: endless streams of times, from a seed. Knows no cluster and no length."""

import random
from collections.abc import Iterator
from itertools import takewhile


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Arrivals at `rate` per second, without memory."""
    return gamma_arrivals(rate, 1.0, seed)


def gamma_arrivals(rate: float, cv: float, seed: int) -> Iterator[float]:
    """Arrivals at `rate` per second whose gaps are Gamma with coefficient of variation `cv` (1: Poisson).

    Raises ValueError for a rate or a CV that is not positive.
    """
    if not (rate > 0 and cv > 0):
        raise ValueError(f"arrivals need a rate and a CV above 0, not {rate} and {cv}")
    return _gamma(random.Random(seed), 1.0 / cv**2, cv**2 / rate)


def _gamma(draw: random.Random, shape: float, scale_s: float) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += draw.gammavariate(shape, scale_s)
        yield at_s


def on_off_arrivals(on_rate: float, off_rate: float, on_s: float, off_s: float, seed: int) -> Iterator[float]:
    """Poisson at `on_rate` for `on_s` seconds, then at `off_rate` (0: silence) for `off_s`, and again.

    Raises ValueError for durations or rates that make no such process.
    """
    if not (on_rate > 0 and off_rate >= 0 and on_s > 0 and off_s >= 0):
        raise ValueError(
            f"ON/OFF needs on_rate, on_s > 0 and off_rate, off_s >= 0, not {on_rate}, {on_s}, {off_rate}, {off_s}"
        )
    return _on_off(random.Random(seed), ((on_rate, on_s), (off_rate, off_s)))


def _on_off(draw: random.Random, phases: tuple[tuple[float, float], ...]) -> Iterator[float]:
    start_s = 0.0
    while True:
        for rate, length_s in phases:
            at_s = start_s
            # Memoryless: cutting a gap at the phase's end and drawing anew changes nothing.
            while rate > 0 and (at_s := at_s + draw.expovariate(rate)) < start_s + length_s:
                yield at_s
            start_s += length_s


def arrivals_until(times: Iterator[float], stop_s: float) -> list[float]:
    """The times before `stop_s`."""
    return list(takewhile(lambda at_s: at_s < stop_s, times))
