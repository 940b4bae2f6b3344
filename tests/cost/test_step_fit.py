"""What running sums of steps teach: the prices that made them, none below 0, the newest first."""

import json
from math import e
from random import Random

import pytest

from dunlin.cost.models import BatchCounts, PiecewiseCurve, StepModel, StepTimes
from dunlin.cost.serialize import parse_learnt, serialize_learnt
from dunlin.cost.step_fit import FEATURES, MEMORY, LearntSteps, StepSums, fit_prices, model_of

KNOTS = PiecewiseCurve((0.0, 64.0, 256.0, 512.0), (0.0, 0.0, 0.004, 0.020))
"""Flat while weights are what takes time, steep when the arithmetic is."""
MACHINE = StepModel(KNOTS, fixed_s=0.006, product_s=2e-8, prefix_s=1e-8, decode_row_s=4e-5, decode_context_s=1e-7)


def chunk(tokens: int, prefix: int = 0, decodes: int = 0, context: int = 300) -> BatchCounts:
    counts = BatchCounts()
    counts.add_prefill(tokens, prefix)
    for _ in range(decodes):
        counts.add_decode(context)
    return counts


def decodes(rows: int, context: int) -> BatchCounts:
    counts = BatchCounts()
    for _ in range(rows):
        counts.add_decode(context)
    return counts


def served(machine: StepTimes, steps: int, seed: int = 1, more: list[StepSums] | None = None) -> list[StepSums]:
    """Sums of steps of decode rows alone and of steps with prompts, of each so many more."""
    draw, sums = Random(seed), more or [StepSums(), StepSums()]
    for _ in range(steps):
        one = chunk(draw.randint(20, 512), draw.choice([0, 300, 1500]), draw.randint(0, 24), draw.randint(50, 900))
        two = decodes(draw.randint(1, 48), draw.randint(50, 900))
        for own, batch in zip(sums, (two, one), strict=True):
            own.add(batch, machine.step_s(batch))
    return sums


def learnt(*kinds: StepSums) -> StepModel:
    return model_of(fit_prices(kinds))


def errors(model: StepTimes, machine: StepTimes = MACHINE) -> list[float]:
    """Relative errors on steps that were not summed; the last two are two and four times as large as any that was."""
    unseen = [chunk(100), chunk(500, 700, 8), decodes(1, 100), decodes(32, 600), chunk(1024, 512), chunk(2048)]
    return [abs(model.step_s(batch) / machine.step_s(batch) - 1.0) for batch in unseen]


def test_steps_teach_the_prices_that_made_them() -> None:
    found = errors(learnt(*served(MACHINE, 300)))
    assert max(found[:4]) < 0.02
    assert max(found) < 0.1


def test_no_price_is_negative_and_further_tokens_never_get_cheaper() -> None:
    falling = StepModel(PiecewiseCurve((0.0, 64.0, 4096.0), (0.0, 0.1, 0.1)), fixed_s=0.01)
    prices = fit_prices(served(falling, 200))
    assert min(prices) >= 0.0
    slopes = model_of(prices).tokens.slope
    assert list(slopes) == sorted(slopes)


def test_many_decode_steps_do_not_drown_few_prompts() -> None:
    few, many = served(MACHINE, 40)[1], served(MACHINE, 2000, seed=2)[0]
    assert max(errors(learnt(many, few))) < 0.1


def test_a_machine_that_changes_is_learnt_anew() -> None:
    slower = StepModel(KNOTS, fixed_s=0.03, product_s=2e-8, decode_row_s=1e-4)
    sums = served(MACHINE, 200)
    served(slower, 4 * MEMORY, seed=2, more=sums)
    assert max(errors(learnt(*sums), slower)) < 0.1


def test_of_two_steps_the_one_1024_steps_older_weighs_an_e_th() -> None:
    sums = StepSums()
    for _ in range(1024):
        sums.add(chunk(16), 1.0)
    assert sums.unit == pytest.approx((1.0 + 1.0 / 1024.0) ** 1024, rel=1e-9)
    assert sums.unit == pytest.approx(e, rel=1e-3)


def test_what_no_step_paid_has_no_price_also_where_the_fit_before_had_one() -> None:
    alone = StepSums()
    alone.add(decodes(4, 100), 0.01)
    prices = fit_prices([alone], start=[1.0] * FEATURES)
    prompts = prices[1], prices[4], prices[5]
    assert prompts == (0.0, 0.0, 0.0)
    assert learnt(alone).step_s(decodes(4, 100)) == pytest.approx(0.01, rel=1e-3)


def test_the_same_sums_give_the_same_prices_also_after_json_and_when_weights_grow() -> None:
    sums = served(MACHINE, 100)
    before = fit_prices(sums)
    kept = LearntSteps(sums[0], sums[1], 12, (0.1, 0.2), (20, 30))
    assert parse_learnt(json.loads(json.dumps(serialize_learnt(kept)))) == kept
    assert fit_prices([each.copy() for each in sums]) == before
    for each in sums:
        each.unit *= 2.0**30  # as after many steps: the next one rescales all
        each.weight, each.products = each.weight * 2.0**30, [2.0**30 * value for value in each.products]
        each.targets = [2.0**30 * value for value in each.targets]
    assert fit_prices(sums) == pytest.approx(before)
    added = served(MACHINE, 1, seed=9, more=sums)
    assert [each.unit for each in added] == [1.0, 1.0]
    assert max(errors(learnt(*added))) < 0.1


def test_damaged_sums_are_refused() -> None:
    sums = served(MACHINE, 3)
    plain = json.loads(json.dumps(serialize_learnt(LearntSteps(sums[0], sums[1]))))
    lists = ({"products": [1.0]}, {"targets": [float("nan")] * 11})
    for change in (*lists, {"unit": 0.0}, {"weight": 0.0}, {"steps": -1}):
        with pytest.raises(ValueError, match="damaged, or of another version"):
            parse_learnt({**plain, "small": {**plain["small"], **change}})
    with pytest.raises(ValueError, match="no steps teach so"):
        parse_learnt({**plain, "errors": [-1.0, 0.0]})
