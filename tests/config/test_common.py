"""The sections that several roles have: their defaults, their ranges and the presets they name."""

import pytest

from dunlin.config.common import ClusterConfig, ReportsConfig
from dunlin.policies.presets import DEFAULT_PRESET, PRESETS


def test_defaults_are_a_cluster_that_needs_no_download() -> None:
    assert ClusterConfig() == ClusterConfig(preset=DEFAULT_PRESET, model="builtin:tiny", model_name="")
    assert ReportsConfig().interval_s == 0.5


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_may_be_chosen(preset: str) -> None:
    assert ClusterConfig(preset=preset).preset == preset


def test_a_preset_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=DEFAULT_PRESET):
        ClusterConfig(preset="fastest")


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan")])
def test_reports_need_a_time_between_them(interval_s: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        ReportsConfig(interval_s=interval_s)
