"""Synthetic lengths have the figures that were published, and are named as synthetic."""

from random import Random
from statistics import mean

import pytest

from dunlin.workload.traffic.published import PUBLISHED, synthetic_notes
from dunlin.workload.traffic.workload_spec import read_workload


def drawn(name: str) -> list[tuple[int, int]]:
    random = Random(1)
    return [PUBLISHED[name].lengths.draw(random) for _ in range(20_000)]


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"), [("burstgpt", 642, 262), ("sharegpt", 1660, 373), ("longbench", 5900, 499)]
)
def test_means_are_the_published_ones(name: str, inputs: int, outputs: int) -> None:
    pairs = drawn(name)
    assert mean(one for one, _ in pairs) == pytest.approx(inputs, rel=0.02)
    assert mean(one for _, one in pairs) == pytest.approx(outputs, rel=0.02)


@pytest.mark.parametrize(("name", "low", "high"), [("leval", 2_700, 210_500), ("lveval", 15_100, 497_300)])
def test_ranges_are_the_published_ones(name: str, low: int, high: int) -> None:
    inputs = [one for one, _ in drawn(name)]
    assert low <= min(inputs) < 1.3 * low
    assert 0.5 * high < max(inputs) <= high


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_set_names_its_source_and_can_be_drawn(name: str) -> None:
    assert PUBLISHED[name].source
    made = read_workload(f"poisson:rate=5,requests=20,lengths={name}")
    assert all(one.input_tokens >= 1 and one.output_tokens >= 1 for one in made)
    (note, *_) = synthetic_notes(f"gamma:4,cv=2,requests=9,lengths=mixed(2*{name},fixed(1,1))")
    assert note == f"synthetic lengths, {name}: {PUBLISHED[name].source}"


def test_files_and_other_words_are_not_called_synthetic() -> None:
    assert synthetic_notes("trace:/data/sharegpt.csv,class=leval2") == []
