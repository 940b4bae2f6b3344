"""Memory of the instances of `dunlin up`."""

from pathlib import Path
from typing import Any

import pytest

from cli.launch import memory
from cli.launch.errors import LaunchError
from cli.launch.memory import SHARE, check_memory, divided_share, memory_lines, slots_of
from cli.launch.options import UpOptions
from dunlin.config.errors import ConfigError
from dunlin.config.resolve import Settings, resolve
from dunlin.config.sources import Given
from dunlin.effects import Address
from dunlin.messages.fleet import FleetStatus, InstanceReport, MemberStatus
from services.settings import TABLES
from tests.engine.build import make_checkpoint

MIB = 1 << 20
MEMORY, DEVICE = "instance.engine.memory_bytes", "instance.engine.device"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint(tmp_path_factory.mktemp("model")))


def settings(source: str = "--set", **given: Any) -> Settings:
    names = {"memory": MEMORY, "device": DEVICE, "share": SHARE, "model": "cluster.model"}
    names |= {"slots": "instance.kv_cache.max_slots", "ranks": "instance.engine.ranks"}
    return resolve(TABLES, [Given(names[name], value, source) for name, value in given.items()])


def refusal(available: int = 64 * MIB, instances: int = 2, **given: Any) -> str:
    with pytest.raises(LaunchError) as caught:
        check_memory(UpOptions(Path("/d"), settings(**given), instances=instances), available)
    return str(caught.value)


@pytest.mark.parametrize(
    ("device", "instances", "gpus", "share"),
    [
        ("cuda:0", 1, 1, None), ("cuda:0", 2, 8, 0.45), ("cuda", 2, 2, None), ("cuda", 3, 2, 0.45),
        ("cuda", 2, 0, 0.45), ("cuda", 3, 1, 0.3), ("cpu", 2, 1, None),
    ],
)  # fmt: skip
def test_instances_on_one_gpu_divide_its_share(device: str, instances: int, gpus: int, share: float | None) -> None:
    found = divided_share(settings(device=device), instances, gpus)
    assert (found and found.value) == (share and pytest.approx(share))
    assert (
        found is None or found.source == f"dunlin up: 0.9, divided by {round(0.9 / found.value)} instances on one GPU"
    )


@pytest.mark.parametrize(("instances", "gpus", "share"), [(2, 4, None), (3, 4, 0.45), (1, 2, None), (2, 2, 0.45)])
def test_instances_of_several_ranks_take_as_many_gpus(instances: int, gpus: int, share: float | None) -> None:
    found = divided_share(settings(device="cuda", ranks=2), instances, gpus)
    assert (found and found.value) == (share and pytest.approx(share))


def test_a_share_that_was_given_is_divided_and_not_where_something_else_says_how_much() -> None:
    found = divided_share(settings(device="cuda:0", share=0.5), 2, 1)
    assert found is not None
    assert found.value == 0.25
    assert divided_share(settings(device="cuda:0", memory="8GiB"), 2, 1) is None
    assert divided_share(settings(device="cuda:0", slots=100), 2, 1) is None


def test_what_does_not_fit_is_refused_before_anything_starts(model: str) -> None:
    assert refusal(memory="40MiB", model=model) == (
        "--memory 40.0 MiB for each of 2 instances: 64.0 MiB are available on this machine or in its control group; "
        "give less, or start fewer instances"
    )
    assert "2.0 MiB are too little: 2.9 MiB are needed" in refusal(memory="2MiB", model=model)
    assert refusal(instances=1, memory="65MiB", model=model).startswith("--memory 65.0 MiB: 64.0 MiB are available")
    check_memory(UpOptions(Path("/d"), settings(memory="30MiB", model=model)), 64 * MIB)
    check_memory(UpOptions(Path("/d"), settings(memory="30GiB", model=model, device="cuda:0")), 64 * MIB)


def test_a_share_of_no_gpu_is_refused_where_a_flag_says_it() -> None:
    assert refusal(source="--gpu-memory-utilization", share=0.5) == (
        "--gpu-memory-utilization with --device cpu: there is no GPU's memory to share; say --memory SIZE"
    )
    check_memory(UpOptions(Path("/d"), settings(share=0.5)), MIB)


@pytest.mark.parametrize("text", ["8GB", "8 gigs", "-1", "8,5GiB", ""])
def test_what_is_no_size_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(source="--memory", memory=text)
    assert str(caught.value) == (
        f"{MEMORY} is {text!r} (--memory): needs a whole number of bytes, at least 0, or a size such as 8GiB or 800MiB"
    )


@pytest.mark.parametrize(("text", "size"), [("8GiB", 8 << 30), ("800 MiB", 800 * MIB), ("1.5GiB", 3 << 29), ("9", 9)])
def test_sizes_are_read(text: str, size: int) -> None:
    assert settings(memory=text)[MEMORY] == size


def test_it_is_said_what_instances_have(model: str, tmp_path: Path) -> None:
    given = settings(memory="30MiB", model=model)
    (line,) = memory_lines(given, tmp_path, {"instance-0": 8192, "instance-1": 8192})
    assert line == (
        "memory:       each instance has KV for 8,192 tokens (6.0 MiB of --memory 30.0 MiB), weights 1.4 MiB"
    )
    first, second = memory_lines(settings(model=model), tmp_path, {"a": 1024, "b": 4096})
    assert first == "memory:       b: KV for 4,096 tokens (3.0 MiB), weights 1.4 MiB"
    assert second.endswith("; the model's longest text is 4,096 tokens")


def test_a_gpus_share_is_said(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "gpu_memory_bytes", lambda number: (80 + number) << 30)
    (line,) = memory_lines(settings(model=model, device="cuda:1", share=0.45), tmp_path, {"a": 8192})
    assert "(6.0 MiB of 0.45 of the GPU's 81.0 GiB), weights 8.0 MiB" in line


def test_the_slots_are_those_that_instances_report() -> None:
    members = (
        MemberStatus(Address("instance", "a", 5), instance=InstanceReport(capacity_slots=7)),
        MemberStatus(Address("dispatcher", "d", 5)),
    )
    assert slots_of(FleetStatus(1, members)) == {"a": 7}
    assert slots_of(None) == {}
