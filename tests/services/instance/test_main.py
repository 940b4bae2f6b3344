"""What an instance's settings tell its engine."""

from pathlib import Path

import pytest

from dunlin.config.errors import ConfigError
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES
from services.instance import __main__ as instance
from services.instance.__main__ import engine_settings
from services.instance.process_config import InstanceProcessConfig
from tests.engine.build import make_checkpoint
from tests.settings import configured


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint(tmp_path_factory.mktemp("model")))


def config(model: str, ranks: int, slots: int = 0) -> InstanceProcessConfig:
    return configured(
        InstanceProcessConfig, role="instance", model=model, engine__ranks=ranks, kv_cache__max_slots=slots
    )


def test_every_rank_has_room_for_all_slots(model: str, tmp_path: Path) -> None:
    """Each has half of a slot's bytes, and rounds down to whole granules in each of three layers."""
    for ranks in (1, 2):
        told = engine_settings(config(model, ranks, slots=1000), tmp_path)
        assert told.ranks == ranks
        granules = told.kv_bytes // ranks // 3 // GRANULE_BYTES
        assert granules * GRANULE_BYTES // (2 * 2 * 16 * 4 // ranks) >= 1000


def test_what_ranks_cannot_compute_is_refused(model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"instance.engine.ranks: 6 attention heads do not divide into 4 ranks"):
        engine_settings(config(model, 4), tmp_path)
    with pytest.raises(ConfigError, match=r"instance.engine.ranks: adapters are computed by one rank, not by 2"):
        engine_settings(config(model, 2), tmp_path, adapters={"a": "/a"})


def test_the_ranks_of_an_instance_have_gpus_that_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "gpu_names", lambda: ("A", "A", "A", "A"))
    assert [instance.own_device("cuda", f"instance-{number}", ranks=2) for number in range(3)] == [
        "cuda:0", "cuda:2", "cuda:0",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"engine.ranks: 2 ranks take a GPU each, from cuda:3 on: 4 are here"):
        instance.own_device("cuda:3", "instance-0", ranks=2)
