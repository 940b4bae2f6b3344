"""Held-out models: what is drawn is compared, and a wrong logit is seen."""

import pytest

pytest.importorskip("transformers")

from benchmarks.fuzzing import model_configs
from benchmarks.fuzzing.one_text import logits_of


def test_models_are_compared_and_a_difference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = model_configs.run(first_seed=5000, trials=3, seconds=600)
    equal, refused, no_oracle, different = found.figures["models: equal, refused, no oracle, different"]
    assert (equal + refused + no_oracle, different) == (3, 0)
    assert equal > 0
    monkeypatch.setattr(model_configs, "logits_of", lambda *given: logits_of(*given) + 0.1)
    wrong = model_configs.run(first_seed=5000, trials=3, seconds=600)
    assert wrong.figures["models: equal, refused, no oracle, different"] == (0, refused, no_oracle, equal)
    assert wrong.failures
