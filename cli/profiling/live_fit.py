"""Fits step times on a live cluster to the times at which clients got their tokens. Pure.

While a request is answered, each of its tokens is the end of a step. The other requests of the step follow from the
times of their first and last tokens. Time in which no request is answered is not seen.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from cli.profiling.fitting.regression import Array
from cli.profiling.profiler import step_interval_s, step_unsteadiness
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.models import AttentionCounts, BatchCounts, GroupStepTimes, PiecewiseCurve
from dunlin.cost.processes import MessageCosts
from dunlin.cost.store import StepPoint
from dunlin.workload.loadgen.stats import RequestRecord

TOGETHER_S = 1.2e-3
"""Seconds within which the tokens of one step come; a first token comes last, after its request's id."""
_LEAST = 0.1
"""Least share of the predicted time that counts: late tokens leave too short a time to the next ones."""
_SIZES_S = 0.001 * 2.0 ** np.arange(7)
"""Predicted times at which steps are told apart."""
_ENOUGH = 10
"""Steps near a size that are needed for it to count."""


@dataclass(frozen=True, slots=True)
class LiveStepModel:
    """Step times beside all that runs on a live cluster: `taken` over what is predicted for the engine alone."""

    engine_alone: GroupStepTimes
    live_curve: PiecewiseCurve

    def step_s(self, batch: BatchCounts) -> float:
        """Seconds the step takes."""
        return self.live_curve.at(self.engine_alone.step_s(batch))

    @property
    def bare_s(self) -> float:
        """See `GroupStepTimes`."""
        return self.live_curve.at(self.engine_alone.bare_s)

    def attention_s(self, work: AttentionCounts) -> float:
        """See `GroupStepTimes`: what runs beside is counted with the whole step."""
        return self.engine_alone.attention_s(work)


def fit_live_timing(timing: EngineTiming, steps: Sequence[StepPoint]) -> EngineTiming:
    """The timing as `steps` of the live cluster show it (`steps_from_records`, by the same timing): a curve over what
    was predicted, because whatever else uses the core costs short steps more than long ones, and the course of events
    that steps meet. Raises ValueError if there are fewer than ten steps of any size.
    """
    predicted_s = np.array([timing.step_s(point.batch) for point in steps])
    step = LiveStepModel(timing.step, _taken(predicted_s, np.array([step_interval_s(point) for point in steps])))
    return replace(timing, step=step, unsteadiness=step_unsteadiness(step, steps))


def _taken(predicted_s: Array, taken_s: Array) -> PiecewiseCurve:
    """At each size the sum of what the steps about it took over the sum of what was predicted: short steps are told
    with much noise, and a mean of their ratios, or of the inverse ones, would be off by it.
    """
    places = np.interp(np.log(predicted_s), np.log(_SIZES_S), np.arange(len(_SIZES_S)))
    shares = np.maximum(0.0, 1.0 - np.abs(places - np.arange(len(_SIZES_S))[:, None]))
    is_known = shares.sum(axis=1) >= _ENOUGH
    if not is_known.any():
        raise ValueError(f"{len(predicted_s)} steps are too few to tell how fast they are: make the load longer")
    sizes_s, shares = _SIZES_S[is_known], shares[is_known]
    found_s = np.maximum.accumulate(sizes_s * (shares @ taken_s) / (shares @ predicted_s))
    return PiecewiseCurve((0.0, *map(float, sizes_s)), (0.0, *map(float, found_s)))


def steps_from_records(records: Sequence[RequestRecord], timing: EngineTiming) -> list[StepPoint]:
    """The steps of a run of one instance, in order: what each computed and its seconds, without what the instance
    itself takes of the core by `timing.host`. All records ended well.
    """
    ordered = sorted((each for each in records if each.token_s), key=lambda each: each.token_s[0])
    own = timing.host.instance if timing.host is not None and timing.host.shares_core else MessageCosts()
    points: list[StepPoint] = []
    spans = list(_spans(ordered))
    for (began_s, ended_s), batch in zip(spans, _batches(ordered, spans), strict=True):
        rows = batch.decode_rows + batch.prefill_rows
        if not rows:
            continue
        taken_s = own.step_s + rows * own.row_s + batch.prefill_rows * own.request_s
        seconds = max(ended_s - began_s - taken_s, _LEAST * timing.step_s(batch))
        points.append(StepPoint("reference", batch, seconds))
    return points


def _spans(ordered: Sequence[RequestRecord]) -> Iterator[tuple[float, float]]:
    """From one step's end to the next one's: tokens of one request after the other, as long as it is answered."""
    at_s = float("-inf")
    for each in ordered:
        if each.token_s[-1] <= at_s:
            continue
        yield from pairwise(each.token_s[bisect_left(each.token_s, at_s - TOGETHER_S) :])
        at_s = each.token_s[-1]


def _batches(ordered: Sequence[RequestRecord], spans: Sequence[tuple[float, float]]) -> Iterator[BatchCounts]:
    """The batch computed in each span. A prompt was in the last step that ended before its first token came, or in none
    that is seen, where its first token is what a span begins with.
    """
    there: list[RequestRecord] = []
    first = 0
    for number, (began_s, ended_s) in enumerate(spans):
        batch = BatchCounts()
        there = [each for each in there if each.token_s[-1] > began_s + TOGETHER_S]
        for each in there:
            known = bisect_left(each.token_s, began_s + TOGETHER_S)
            batch.add_decode(each.input_tokens + max(1, known))
        until_s = ended_s + TOGETHER_S
        if number + 1 < len(spans) and spans[number + 1][0] < until_s:  # the next step follows at once
            until_s = max(until_s, spans[number + 1][1] - TOGETHER_S)
        while first < len(ordered) and ordered[first].token_s[0] < until_s:
            one = ordered[first]
            there.append(one)
            first += 1
            if one.token_s[0] <= began_s + TOGETHER_S:
                batch.add_decode(one.input_tokens + 1)
            else:
                batch.add_prefill(one.input_tokens)
        yield batch
