"""A trace like BurstGPT's (whose files may not be at hand), and samples of a trace as ConServe 6.2 takes them."""

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from random import Random

from dunlin.workload.traffic.arrival_processes import arrivals_until, gamma_arrivals
from dunlin.workload.traffic.published import PUBLISHED
from dunlin.workload.traffic.rewriting import sample_over
from dunlin.workload.traffic.trace import Arrival
from dunlin.workload.traffic.trace_formats import read_trace

SHAPE = ((240.0, 2.0), (380.0, 1.0), (280.0, 3.0))
"""Seconds and relative rates: the quarter of an hour of ConServe's Fig. 1b and 5, as far as the text says it. Calm from
240 to 620 s, then three times that; what came before the calm is a guess."""
RATE, CV = 10.0, 1.5
"""Requests per second of the calm: more than any sample takes. The variation of gaps is a guess."""


def burst_trace(seed: int) -> list[Arrival]:
    """Gamma arrivals whose rate follows `SHAPE`, with lengths of BurstGPT's published means."""
    expected = [0.0, *accumulate(length_s * rate * RATE for length_s, rate in SHAPE)]
    starts_s = [0.0, *accumulate(length_s for length_s, _ in SHAPE)]
    draw, lengths = Random(f"burst {seed}"), PUBLISHED["burstgpt"].lengths
    made = []
    for nth in arrivals_until(gamma_arrivals(1.0, CV, seed), expected[-1]):
        phase = bisect_right(expected, nth) - 1
        at_s = starts_s[phase] + (nth - expected[phase]) / (SHAPE[phase][1] * RATE)
        made.append(Arrival(at_s, *lengths.draw(draw)))
    return made


def sampled_trace(rate: float, duration_s: float, seed: int, file: Path | None = None) -> list[Arrival]:
    """`rate` x `duration_s` requests of `file` (None: of `burst_trace`), their times scaled to `duration_s`.

    Raises:
        TraceError: the file cannot be used, or has fewer requests.
    """
    trace = burst_trace(seed) if file is None else read_trace(file)
    return sample_over(trace, rate, duration_s, seed)
