"""Whole clusters under random faults, in virtual time: a failing seed is replayed by its number."""

from collections import Counter

import pytest

from dunlin.policies.presets import PRESETS
from tests.fakes.chaos import Chaos

SEEDS = 24


@pytest.mark.parametrize("seed", range(SEEDS))
def test_streams_stay_exact_whatever_happens(seed: int) -> None:
    Chaos(seed).run()


@pytest.mark.parametrize(
    ("preset", "seed"), [(preset, 200) for preset in PRESETS] + [("distserve", seed) for seed in range(6)]
)
def test_no_preset_costs_a_stream_its_exactness(preset: str, seed: int) -> None:
    Chaos(seed, preset=preset).run()


@pytest.mark.parametrize("seed", range(100, 106))
def test_poison_requests_end_and_nobody_else_does(seed: int) -> None:
    chaos = Chaos(seed, requests=24, faults=8, poison=2)
    chaos.run()
    assert chaos.done["bite"] >= 2


def test_every_fault_is_done_by_some_seed() -> None:
    done: Counter[str] = Counter()
    for seed in range(10):
        chaos = Chaos(seed, requests=24, faults=16)
        chaos.run()
        done += chaos.done
    assert {name.removeprefix("fault_") for name in dir(Chaos) if name.startswith("fault_")} <= set(done)
