"""How fast steps are on a live cluster, from the times at which clients got their tokens. Pure.

While a request is answered, each of its tokens is the end of a step. Who else was in the step follows from when the
others' first and last tokens came. What passes while nobody is answered is not seen.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dunlin.cost.fit import relative_fit
from dunlin.cost.models import Batch, EngineTiming, MessageCosts
from dunlin.cost.profile import unsteadiness
from dunlin.cost.store import StepPoint
from dunlin.workload.stats import Record

TOGETHER_S = 1.2e-3
"""Tokens of one step come within this; a request's first one comes last, for its stream begins with its name."""
_LEAST = 0.1
"""Of what was predicted: tokens that come late leave too short a time to the next ones."""


def in_service(timing: EngineTiming, steps: Sequence[StepPoint]) -> EngineTiming:
    """The timing as `steps` of the live cluster show it (`steps_of`, by the same timing): what every step takes beside
    what its batch explains is the instance's, and the rest is the course of events that steps meet.
    """
    predicted = np.array([timing.step_s(point.batch) for point in steps])
    features = np.stack([predicted, np.ones_like(predicted)], axis=1)
    _, beside_s = map(float, relative_fit(features, np.array([point.seconds for point in steps])))
    rest = [
        replace(point, seconds=max(point.seconds - beside_s, _LEAST * float(expected_s)))
        for point, expected_s in zip(steps, predicted, strict=True)
    ]
    host = timing.host
    if host is not None:
        host = replace(host, instance=replace(host.instance, step_s=host.instance.step_s + beside_s))
    return replace(timing, host=host, unsteadiness=unsteadiness(timing.step, rest))


def steps_of(records: Sequence[Record], timing: EngineTiming) -> list[StepPoint]:
    """The steps of a run of one instance, in order: what each computed and its seconds, without what the instance
    itself takes of the core by `timing.host`. All records ended well.
    """
    ordered = sorted((each for each in records if each.token_s), key=lambda each: each.token_s[0])
    own = timing.host.instance if timing.host is not None and timing.host.shares_core else MessageCosts()
    points: list[StepPoint] = []
    there: list[Record] = []
    first = 0
    for began_s, ended_s in _spans(ordered):
        batch = Batch()
        while first < len(ordered) and ordered[first].token_s[0] <= ended_s + TOGETHER_S:
            there.append(ordered[first])
            first += 1
        there = [each for each in there if each.token_s[-1] > began_s + TOGETHER_S]
        for each in there:
            known = bisect_left(each.token_s, began_s + TOGETHER_S)
            if known:
                batch.add_decode(each.input_tokens + known)
            else:
                batch.add_prefill(each.input_tokens)
        rows = batch.decode_rows + batch.prefill_rows
        if not rows:
            continue
        taken_s = own.step_s + rows * own.row_s + batch.prefill_rows * own.request_s
        seconds = max(ended_s - began_s - taken_s, _LEAST * timing.step_s(batch))
        points.append(StepPoint("reference", batch, seconds))
    return points


def _spans(ordered: Sequence[Record]) -> Iterator[tuple[float, float]]:
    """From one step's end to the next one's: tokens of one request after the other, as long as it is answered."""
    at_s = float("-inf")
    for each in ordered:
        if each.token_s[-1] <= at_s:
            continue
        yield from pairwise(each.token_s[bisect_left(each.token_s, at_s - TOGETHER_S) :])
        at_s = each.token_s[-1]
