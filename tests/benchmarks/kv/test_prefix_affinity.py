"""Placing by what instances hold pays where there is something to save, and costs nothing where there is not."""

import pytest

from benchmarks.kv.prefix_affinity import run


def test_conversations_stay_where_they_are() -> None:
    by_prefix, by_load = (run(policy, "own texts", 3, 9) for policy in ("prefix_affinity", "least_loaded"))
    assert by_prefix["hit_rate"] > by_load["hit_rate"]
    assert 2 * by_prefix["prefill_tokens"] < by_load["prefill_tokens"]  # what a lucky baseline cannot hide
    assert by_prefix["ttft_mean_s"] < by_load["ttft_mean_s"]


@pytest.mark.parametrize("kind", ["single requests", "one hot prompt"])
def test_where_nothing_can_be_saved_by_placing_it_is_as_by_load(kind: str) -> None:
    by_prefix, by_load = (run(policy, kind, 3, 5) for policy in ("prefix_affinity", "least_loaded"))
    assert by_prefix["seconds"] <= 1.03 * by_load["seconds"]
    assert by_prefix["ttft_mean_s"] <= 1.05 * by_load["ttft_mean_s"]
