"""Which profile of a store a manager plans groups by."""

from pathlib import Path

import pytest

from dunlin.config.errors import ConfigError
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import PiecewiseCurve, StepModel
from dunlin.cost.store import ProfileKey, ProfileStore
from services.global_manager.group_profile import read_times

TINY, BF16, OTHER = (
    ProfileKey("builtin:tiny", "cpu", "threads=1,dtype=fp32"),
    ProfileKey("builtin:tiny", "cpu", "threads=1,dtype=bf16"),
    ProfileKey("other", "gpu", "threads=1,dtype=bf16"),
)


def store(path: Path, *keys: ProfileKey) -> str:
    """Later ones take longer, by their number in seconds."""
    with ProfileStore(path) as opened:
        for number, key in enumerate(keys, start=1):
            step = StepModel(PiecewiseCurve((1.0, 2.0), (0.0, 0.0)), fixed_s=float(number))
            timing = EngineTiming(step, TransferModels(TransferModel(0.0, 1e9)), 1.0, 1000, 64)
            opened.save(key, f"2026-11-2{number}", timing)
    return str(path)


def test_the_only_profile_counts_whatever_its_model(tmp_path: Path) -> None:
    """A manager that is started by hand need not be told the model."""
    assert read_times(store(tmp_path / "p.db", OTHER), "builtin:tiny") == read_times(str(tmp_path / "p.db"), "other")


def test_of_several_the_one_of_the_clusters_model_counts_and_not_the_latest(tmp_path: Path) -> None:
    both = store(tmp_path / "both.db", TINY, OTHER)
    assert read_times(both, "builtin:tiny") == read_times(store(tmp_path / "one.db", TINY), "builtin:tiny")
    assert read_times(both, "other") != read_times(both, "builtin:tiny")


@pytest.mark.parametrize(("model", "count"), [("builtin:tiny", 2), ("unknown", 0)])
def test_what_is_left_open_is_refused_with_what_there_is(tmp_path: Path, model: str, count: int) -> None:
    path = store(tmp_path / "p.db", TINY, BF16, OTHER)
    with pytest.raises(
        ConfigError, match=rf"^manager.groups.profile: .*3 profiles, {count} of them of {model}"
    ) as error:
        read_times(path, model)
    assert f"{OTHER}; {BF16}; {TINY}; `dunlin profile --out`" in str(error.value)


def test_no_profile_and_no_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no profile; `dunlin profile --out` makes one"):
        read_times(store(tmp_path / "empty.db"), "builtin:tiny")
    with pytest.raises(ConfigError, match=r"absent.db: there is no such file"):
        read_times(str(tmp_path / "absent.db"), "builtin:tiny")
