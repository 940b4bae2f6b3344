"""Which names devices have, and which GPU an instance takes."""

import pytest

from dunlin.engine.device.names import (
    DeviceNameError,
    check_device_name,
    device_kind,
    device_of,
    granule_bytes,
    lacking_gpus,
    rank_device,
)


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:0", "cuda:12", "interpret"])
def test_a_device_is_named(name: str) -> None:
    assert check_device_name(name) == name


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "CUDA", "cuda:1 "])
def test_another_name_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(DeviceNameError, match=r"device '.*': choose one of cpu, cuda, cuda:N"):
        check_device_name(name)


def test_instances_take_gpus_in_turn_unless_one_is_named() -> None:
    assert [device_of("cuda", instance, 2) for instance in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [device_of(name, 5, 2) for name in ("cuda:1", "cpu", "interpret")] == ["cuda:1", "cpu", "interpret"]
    assert device_of("cuda", 1, 0) == "cuda", "the engine says that there is none"


def test_ranks_take_gpus_that_follow_each_other() -> None:
    assert [device_of("cuda", instance, 5, 2) for instance in range(3)] == ["cuda:0", "cuda:2", "cuda:0"]
    assert device_of("cuda", 1, 1, 2) == "cuda"
    assert [rank_device("cuda:4", rank) for rank in (1, 2)] == ["cuda:5", "cuda:6"]
    assert [rank_device(name, 1) for name in ("cuda", "cpu", "interpret")] == ["cuda:1", "cpu", "interpret"]
    assert lacking_gpus("cuda:2", 2, 3) == "2 ranks take a GPU each, from cuda:2 on: 3 are here, numbered from 0"
    assert [lacking_gpus(*each) for each in (("cuda:1", 2, 3), ("cpu", 2, 0), ("cuda", 1, 0))] == [""] * 3


def test_kinds_and_their_granules() -> None:
    assert [device_kind(name) for name in ("cpu", "cuda", "cuda:3", "interpret")] == [
        "cpu",
        "cuda",
        "cuda",
        "interpret",
    ]
    assert [granule_bytes(name) for name in ("cpu", "cuda:3", "interpret")] == [1 << 16, 2 << 20, 1 << 16]
