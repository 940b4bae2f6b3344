"""`dunlin sim --against` takes the profile of the recorded configuration, and no other one of the same model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.commands.simulate.recorded_profile import load_recorded_timing
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import PiecewiseCurve, StepModel
from dunlin.cost.store import ProfileKey, ProfileStore, StoreError, engine_key
from simulator.study.recorded_cluster import RunError
from tests.simulator.study.recorded_facts import recorded_facts

STEP = StepModel(tokens=PiecewiseCurve((1.0, 64.0), (2e-3, 4e-3)), fixed_s=1e-3)
TIMING = EngineTiming(STEP, TransferModels(TransferModel(1e-3, 1e9)), 1.0, 4096, 256)


def key(device: str = "A CPU", threads: int = 4, precision: str = "bf16", ranks: int = 1) -> ProfileKey:
    return engine_key("builtin:tiny", device, threads, precision, deterministic=False, ranks=ranks)


def recorded(**facts: Any) -> dict[str, Any]:
    engine: dict[str, Any] = {"instance.engine.dtype": "bf16", "instance.engine.threads": 4}
    return {**recorded_facts(**engine), "processor": "A CPU", **facts}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "profiles.db"


def keep(store: Path, *keys: ProfileKey) -> list[EngineTiming]:
    """A profile for each key, the last one the latest."""
    kept = [replace(TIMING, slots=number + 1) for number in range(len(keys))]
    with ProfileStore(store) as opened:
        for number, (one, timing) in enumerate(zip(keys, kept, strict=True)):
            opened.save(one, f"2026-01-{number + 1:02}", timing)
    return kept


OTHERS = (
    key(precision="fp32"),
    key(threads=2),
    key(ranks=2),
    key(device="Another CPU"),
    key(precision="bf16 with KV in fp8"),
)


def test_later_profiles_of_other_configurations_are_passed_over(store: Path) -> None:
    kept = keep(store, key(), *OTHERS)
    assert load_recorded_timing(store, recorded()) == kept[0]


def test_without_it_the_others_and_the_command_are_named(store: Path) -> None:
    keep(store, *OTHERS)
    with pytest.raises(StoreError) as refused:
        load_recorded_timing(store, recorded())
    said = str(refused.value)
    assert "no profile of builtin:tiny on A CPU, threads=4,dtype=bf16, as the run had" in said
    assert all(str(one) in said for one in OTHERS)
    command = f"`dunlin profile --model builtin:tiny --dtype bf16 --threads 4 --out {store}`"
    assert command in said


def test_the_command_names_what_is_not_usual(store: Path) -> None:
    keep(store)
    engine: dict[str, Any] = {"kv_dtype": "fp8", "device": "cuda:0", "threads": 1, "dtype": "bf16"}
    facts = recorded_facts(**{f"instance.engine.{name}": value for name, value in engine.items()})
    with pytest.raises(StoreError, match=r"measured: none yet; .*--kv-dtype fp8 --device cuda:0 --out"):
        load_recorded_timing(store, facts)
    facts = recorded_facts(**{"instance.engine.ranks": 2, "instance.engine.threads": 2})
    with pytest.raises(StoreError, match=r"threads=2,dtype=fp32,ranks=2.* --tp 2 --out"):
        load_recorded_timing(store, facts)


def test_an_older_record_takes_the_only_machine_and_no_guess(store: Path) -> None:
    older = recorded(processor=None)
    kept = keep(store, key(), key(threads=2))
    assert load_recorded_timing(store, older) == kept[0]
    keep(store, key(device="Another CPU"))
    with pytest.raises(StoreError, match="which of these machines it ran"):
        load_recorded_timing(store, older)


def test_a_record_without_settings_is_refused(store: Path) -> None:
    keep(store, key())
    with pytest.raises(RunError, match="a run over --endpoint has none"):
        load_recorded_timing(store, recorded(settings=None))
