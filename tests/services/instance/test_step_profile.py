"""Which profile an instance predicts its steps from."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dunlin.config.errors import ConfigError
from dunlin.cost import PROFILES_FILE
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import BatchCounts, PiecewiseCurve, StepModel
from dunlin.cost.step_fit import LearntSteps, StepSums
from dunlin.cost.store import ProfileKey, ProfileStore
from services.instance.process_config import InstanceProcessConfig
from services.instance.server_learnt_steps import saver
from services.instance.step_profile import find_step_times, step_times_key
from tests.settings import configured


def save(path: Path, fixed_s: float, key: ProfileKey | None = None, measured_at: str = "2026-11-23") -> Path:
    step = StepModel(PiecewiseCurve((1.0, 2.0), (0.0, 0.0)), fixed_s=fixed_s)
    with ProfileStore(path) as store:
        timing = EngineTiming(step, TransferModels(TransferModel(0.0, 1e9)), 1.0, 100, 64)
        store.save(key or step_times_key(config()), measured_at, timing)
    return path


def config(**settings: Any) -> InstanceProcessConfig:
    return configured(InstanceProcessConfig, role="instance", **{"model": "builtin:tiny", **settings})


def step_s(config: InstanceProcessConfig, data_dir: Path) -> float:
    profile = find_step_times(config, data_dir)
    assert profile is not None
    assert not isinstance(profile, LearntSteps)
    return profile.step_s(BatchCounts(1, 10))


def test_the_named_store_counts_before_the_data_directory(tmp_path: Path) -> None:
    save(tmp_path / PROFILES_FILE, 0.1)
    assert step_s(config(), tmp_path) == 0.1
    assert step_s(config(engine__profile=str(save(tmp_path / "mine.db", 0.2))), tmp_path) == 0.2


def test_a_directory_is_the_same_model_by_whatever_path_and_another_one_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one" / "model", tmp_path / "other" / "model"
    for folder in (one, other):
        folder.mkdir(parents=True)
    monkeypatch.chdir(one.parent)
    save(tmp_path / PROFILES_FILE, 0.1, step_times_key(config(model="./model")))
    for path in ("./model", "model/", str(one)):
        assert step_s(config(model=path), tmp_path) == 0.1
    learnt = step_times_key(config(model="./model"))
    monkeypatch.chdir(other.parent)
    assert step_s(config(model=str(one)), tmp_path) == 0.1
    assert find_step_times(config(model="./model"), tmp_path) is None
    assert step_times_key(config(model="./model")) != learnt


@pytest.mark.parametrize("changed", ["model", "device", "parallelism"])
def test_a_later_profile_of_another_engine_does_not_count(tmp_path: Path, changed: str) -> None:
    """Of another model, on another device, of another precision or with other threads."""
    path = save(tmp_path / PROFILES_FILE, 0.1)
    save(path, 0.9, replace(step_times_key(config()), **{changed: "another"}), "2026-11-24")
    assert step_s(config(), tmp_path) == 0.1
    assert step_s(config(engine__profile=str(path)), tmp_path) == 0.1


@pytest.mark.parametrize("settings", [{"engine__dtype": "bf16"}, {"engine__threads": 2}, {"engine__ranks": 2}])
def test_a_named_store_must_have_a_profile_of_such_an_engine(tmp_path: Path, settings: dict[str, Any]) -> None:
    store, key = save(tmp_path / "mine.db", 0.2), step_times_key(config())
    wanting = config(engine__profile=str(store), **settings)
    with pytest.raises(ConfigError, match=r"^instance.engine.profile: .*--dtype.*without the setting") as refused:
        find_step_times(wanting, tmp_path)
    assert f"no profile of {step_times_key(wanting)}; measured: {key}; " in str(refused.value)


def test_a_named_store_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.db: there is no such file"):
        find_step_times(config(engine__profile=str(tmp_path / "absent.db")), tmp_path)


def test_without_one_the_policies_that_want_it_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    save(tmp_path / PROFILES_FILE, 0.1, ProfileKey("builtin:tiny", "another", "threads=1,dtype=fp32"))
    assert find_step_times(config(), tmp_path) is None
    assert caplog.text == ""
    wanting = config(scheduler__policy="slo_aware", interrupts__policy="on_arrival")
    assert find_step_times(wanting, tmp_path) is None
    assert f"slo_aware and on_arrival: no profile of {step_times_key(wanting)} in" in caplog.text
    assert "learnt from those that are served" in caplog.text
    assert "`dunlin profile` with this --model, --device, --dtype, --kv-dtype, --threads and --tp" in caplog.text


def test_what_such_an_engine_taught_is_found_where_there_is_no_profile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    wanting = config(scheduler__policy="harvest")
    learnt = LearntSteps(StepSums(), StepSums(), 3)
    saver(tmp_path / PROFILES_FILE, step_times_key(wanting))(learnt)
    assert find_step_times(wanting, tmp_path) == learnt
    assert caplog.text == ""
    assert find_step_times(config(scheduler__policy="harvest", engine__dtype="bf16"), tmp_path) is None
    assert find_step_times(config(scheduler__policy="harvest", engine__kv_dtype="fp8"), tmp_path) is None
    save(tmp_path / PROFILES_FILE, 0.1)
    assert step_s(wanting, tmp_path) == 0.1, "a profile counts before it"


def test_a_damaged_store_is_said_and_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / PROFILES_FILE).write_bytes(b"no database, but long enough to be read as one" * 9)
    assert find_step_times(config(), tmp_path) is None
    assert "cannot be used as a store" in caplog.text
