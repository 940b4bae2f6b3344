"""The figures of a run: from records to a report. Pure.

TTFT: arrival → first token. TPOT: (last − first token) / (tokens − 1). ITL: gaps between tokens. JCT: arrival → last
token. Arrival is the moment that the schedule says, so a generator that is late does not hide a queue.
"""

import math
from collections.abc import Iterable, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

QUANTILES = (("p50", 0.50), ("p90", 0.90), ("p99", 0.99), ("max", 1.0))


@dataclass(slots=True)
class RequestRecord:
    """One request. Times are seconds from the start of the run; `token_s[i]` is when token i came.

    `outcome` is `ok`, `refused` (the door said no: full), `expired` (its deadline passed) or `error`; `detail` says
    more of all but the first.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    clipped: bool = False
    sent_s: float = 0.0
    token_s: MutableSequence[float] = field(default_factory=list)
    end_s: float = 0.0
    outcome: str = "error"
    detail: str = ""
    request: str = ""
    tokens: list[int] = field(default_factory=list)
    label: str = ""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of one measure, nearest rank; all 0 when nothing was measured, infinite where nothing came."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run's figures; times in seconds, shares in 0…1, rates per second of `span_s` (first arrival to last token).

    Every request is `completed`, `refused`, `expired` or one of `errors`. `clipped` ran shorter than their trace says;
    `unanswered` got no token. A first token, or an end, that never came counts as infinitely late in `ttft_s` and
    `jct_s`; the measures between tokens are of completed requests. Attainment and goodput are of all that came.
    """

    requests: int
    completed: int
    refused: int
    expired: int
    errors: int
    unanswered: int
    clipped: int
    span_s: float
    requests_per_s: float
    output_tokens_per_s: float
    input_tokens: int
    output_tokens: int
    clipped_share: float
    ttft_s: Percentiles
    tpot_s: Percentiles
    itl_s: Percentiles
    jct_s: Percentiles
    lateness_s: Percentiles
    first_errors: tuple[str, ...] = ()
    slo_attainment: float | None = None
    goodput_per_s: float | None = None


def percentiles(values: Iterable[float]) -> Percentiles:
    """Percentiles of `values`."""
    ordered = sorted(values)
    return Percentiles(*(nearest_rank(ordered, share) for _, share in QUANTILES))


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the (sorted) values do not exceed; 0 when there are none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def summarize(records: Sequence[RequestRecord], met: Sequence[bool] | None = None) -> RunReport:
    """The figures of a run. `met` says of each request whether it met its objective, where there is one: goodput counts
    those.
    """
    done = [record for record in records if record.outcome == "ok"]
    failed = [record for record in records if record.outcome == "error"]
    start_s = min((record.at_s for record in records), default=0.0)
    span_s = max(map(_last_s, records), default=0.0) - start_s
    made = sum(len(record.token_s) for record in records)
    return RunReport(
        requests=len(records),
        completed=len(done),
        refused=sum(record.outcome == "refused" for record in records),
        expired=sum(record.outcome == "expired" for record in records),
        errors=len(failed),
        unanswered=sum(not record.token_s for record in records),
        clipped=sum(record.clipped for record in records),
        span_s=span_s,
        requests_per_s=len(done) / span_s if span_s > 0 else 0.0,
        output_tokens_per_s=made / span_s if span_s > 0 else 0.0,
        input_tokens=sum(record.input_tokens for record in records),
        output_tokens=made,
        clipped_share=sum(record.clipped for record in records) / len(records) if records else 0.0,
        ttft_s=percentiles(request_ttft_s(record) for record in records),
        tpot_s=percentiles(request_tpot_s(record) for record in done if len(record.token_s) > 1),
        itl_s=percentiles(gap for record in done for gap in _gaps(record.token_s)),
        jct_s=percentiles(request_jct_s(record) for record in records),
        lateness_s=percentiles(record.sent_s - record.at_s for record in records),
        first_errors=tuple(record.detail for record in failed[:5]),
        slo_attainment=None if met is None else sum(met) / len(met) if met else 0.0,
        goodput_per_s=None if met is None else sum(met) / span_s if span_s > 0 else 0.0,
    )


def _last_s(record: RequestRecord) -> float:
    """When a request ended, or what came last of one that was open when its run was cut off, which has no end."""
    return max(record.at_s, record.end_s, *record.token_s[-1:])


def request_ttft_s(record: RequestRecord) -> float:
    """Seconds from a request's arrival to its first token; infinite if none came."""
    return record.token_s[0] - record.at_s if record.token_s else math.inf


def request_jct_s(record: RequestRecord) -> float:
    """Seconds from a request's arrival to its last token; infinite if it was not completed."""
    return record.token_s[-1] - record.at_s if record.outcome == "ok" and record.token_s else math.inf


def request_tpot_s(record: RequestRecord) -> float:
    """TPOT of a request of at least two tokens."""
    return (record.token_s[-1] - record.token_s[0]) / (len(record.token_s) - 1)


def _gaps(times: Sequence[float]) -> Iterable[float]:
    return (later - earlier for earlier, later in pairwise(times))
