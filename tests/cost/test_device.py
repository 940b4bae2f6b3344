"""Devices that ship: read back from their JSON; unknown and damaged ones are named."""

import pytest

from dunlin.cost.device import DeviceError, LinkModel, device_of, find_device, known_devices


def test_a_device_survives_its_own_json() -> None:
    device = find_device("h200")
    assert device_of(device.as_json()) == device


def test_a_damaged_device_is_named() -> None:
    plain = find_device("a100").as_json()
    del plain["gemm"]
    with pytest.raises(DeviceError, match="a100 are damaged: KeyError"):
        device_of(plain)


def test_a_link_takes_its_fixed_time_and_then_its_bandwidth() -> None:
    assert LinkModel(0.5, 4.0).transfer_s(6) == 2.0


def test_every_device_that_ships_is_found_whatever_the_case_of_its_name() -> None:
    assert known_devices() == ["a100", "a100-40g", "a800", "h100", "h200"]
    assert find_device("H200").name == "h200"
    assert all(find_device(name).sources for name in known_devices()), "every figure says where it comes from"


def test_an_unknown_device_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(DeviceError, match="no device is called 'b300'; known: a100, a100-40g, a800, h100, h200"):
        find_device("b300")


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        ({"all_reduce": {"two": {}}}, "ValueError"),
        ({"host_link": {"fixed_s": 1.0}}, "TypeError"),
        ({"unknown": 1}, "TypeError"),
        ({"sources": [{"name": "x"}]}, "TypeError"),
    ],
)
def test_the_damage_of_a_device_is_said(damage: dict[str, object], cause: str) -> None:
    with pytest.raises(DeviceError, match=f"coefficients of a100 are damaged: {cause}"):
        device_of({**find_device("a100").as_json(), **damage})


def test_the_numbers_of_gpus_are_integers_again() -> None:
    plain = find_device("a100").as_json()
    assert sorted(plain["all_reduce"]) == ["2", "4", "8"]
    assert sorted(device_of(plain).all_reduce) == [2, 4, 8]
