"""The campaign, small: nothing that is damaged, or of another identity, is taken for what was asked for."""

import torch

from benchmarks.kv import region_corruption


def test_every_damage_is_detected_and_none_crashes() -> None:
    torch.set_num_threads(1)
    outcome = region_corruption.run(1800)
    assert outcome.failures == []
    assert (outcome.figures["undetected"], outcome.figures["crashes"]) == (0, 0)
    assert len(outcome.figures) >= 12
