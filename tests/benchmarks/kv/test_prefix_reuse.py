"""What the measurement of prefix reuse concludes, from made-up outcomes."""

import pytest

from benchmarks.kv.prefix_reuse import ReuseOutcome, check_same, figures


def test_the_figures_are_those_of_all_rounds() -> None:
    outcome = ReuseOutcome(
        [0.3, 0.1, 0.2], [0.01, 0.02], prompt_tokens=400, cached_tokens=100, prefill_tokens=300, seconds=2
    )
    found = figures(outcome)
    assert found["hit_rate"] == 0.25
    assert found["first_turn_ttft_p50_ms"] == pytest.approx(200)
    assert found["later_turn_ttft_p99_ms"] == pytest.approx(20)


def test_answers_may_come_in_any_order_but_must_be_the_same() -> None:
    one, same = ReuseOutcome(texts=[(1, 2), (3,)]), ReuseOutcome(texts=[(3,), (1, 2)])
    check_same({"reuse": one, "no reuse": same})
    with pytest.raises(SystemExit, match="an answer differs"):
        check_same({"reuse": one, "no reuse": ReuseOutcome(texts=[(1, 2), (4,)])})
