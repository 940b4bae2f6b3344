"""Which profile an instance predicts its steps from."""

import logging
from pathlib import Path

import pytest

from dunlin.config.errors import ConfigError
from dunlin.cost import PROFILES_FILE
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.models import BatchCounts, PiecewiseCurve, StepModel, TransferModel, TransferModels
from dunlin.cost.store import ProfileKey, ProfileStore
from services.instance.process_config import InstanceProcessConfig
from services.instance.step_profile import find_profile
from tests.settings import configured


def save(path: Path, fixed_s: float, model: str = "builtin:tiny") -> Path:
    step = StepModel(PiecewiseCurve((1.0, 2.0), (0.0, 0.0)), fixed_s=fixed_s)
    with ProfileStore(path) as store:
        timing = EngineTiming(step, TransferModels(TransferModel(0.0, 1e9)), 1.0, 100, 64)
        store.save(ProfileKey(model, "cpu", "tp=1"), "2026-11-23", timing)
    return path


def config(**settings: str) -> InstanceProcessConfig:
    return configured(InstanceProcessConfig, role="instance", model="builtin:tiny", **settings)


def step_s(config: InstanceProcessConfig, data_dir: Path) -> float:
    profile = find_profile(config, data_dir)
    assert profile is not None
    return profile.step_s(BatchCounts(1, 10))


def test_the_named_store_counts_before_the_data_directory(tmp_path: Path) -> None:
    save(tmp_path / PROFILES_FILE, 0.1)
    assert step_s(config(), tmp_path) == 0.1
    assert step_s(config(engine__profile=str(save(tmp_path / "mine.db", 0.2))), tmp_path) == 0.2


def test_a_named_store_must_have_the_model(tmp_path: Path) -> None:
    other = save(tmp_path / "mine.db", 0.2, "other")
    with pytest.raises(ConfigError, match=r"instance.engine.profile: .*no profile of builtin:tiny; measured: other"):
        find_profile(config(engine__profile=str(other)), tmp_path)
    with pytest.raises(ConfigError, match=r"absent.db: there is no such file"):
        find_profile(config(engine__profile=str(tmp_path / "absent.db")), tmp_path)


def test_without_one_the_policies_that_want_it_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    save(tmp_path / PROFILES_FILE, 0.1, "other")
    assert find_profile(config(), tmp_path) is None
    assert caplog.text == ""
    wanting = config(scheduler__policy="slo_aware", interrupts__policy="on_arrival")
    assert find_profile(wanting, tmp_path) is None
    assert "slo_aware and on_arrival: no profile of builtin:tiny" in caplog.text
    assert "run `dunlin profile --model builtin:tiny`" in caplog.text
