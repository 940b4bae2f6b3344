"""How fast steps are on a live cluster, from the times at which clients got their tokens. Pure.

One request that answers all the while marks the steps: each of its tokens is the end of one. Who else was in the step
follows from when the others' first and last tokens came.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from dunlin.cost.models import Batch, EngineTiming, MessageCosts
from dunlin.cost.store import StepPoint
from dunlin.workload.stats import Record

TOGETHER_S = 1.2e-3
"""Tokens of one step come within this; a request's first one comes last, for its stream begins with its name."""
_LEAST = 0.1
"""Of what was predicted: tokens that come late leave too short a time to the next ones."""


def steps_of(records: Sequence[Record], timing: EngineTiming) -> list[StepPoint]:
    """The steps of a run of one instance, in order: what each computed and its seconds, without what the instance
    itself takes of the core by `timing.host`. All records ended well; the one with most tokens marks the steps.
    """
    marker = max(records, key=lambda each: len(each.token_s))
    others = sorted((each for each in records if each is not marker and each.token_s), key=lambda each: each.token_s[0])
    own = timing.host.instance if timing.host is not None and timing.host.shares_core else MessageCosts()
    points: list[StepPoint] = []
    there: list[Record] = []
    first = 0
    for number, (began_s, ended_s) in enumerate(pairwise(marker.token_s), start=1):
        batch = Batch()
        batch.add_decode(marker.input_tokens + number)
        there = [each for each in there if each.token_s[-1] > began_s + TOGETHER_S]
        for each in there:
            batch.add_decode(each.input_tokens + bisect_left(each.token_s, began_s + TOGETHER_S))
        while first < len(others) and others[first].token_s[0] <= ended_s + TOGETHER_S:
            batch.add_prefill(others[first].input_tokens)
            there.append(others[first])
            first += 1
        rows = batch.decode_rows + batch.prefill_rows
        taken_s = own.step_s + rows * own.row_s + batch.prefill_rows * own.request_s
        seconds = max(ended_s - began_s - taken_s, _LEAST * timing.step_s(batch))
        points.append(StepPoint("reference", batch, seconds, 0.0))
    return points
