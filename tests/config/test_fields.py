"""Declared settings: found with their names, checked against their ranges, built by their names."""

from dataclasses import dataclass, replace

import pytest

from dunlin.config.fields import build, check, section, sections_of, setting, settings_of


@dataclass(frozen=True, slots=True)
class Oven:
    heat_c: float = setting(180.0, "How hot.", unit="degrees", above=20, most=300)
    racks: int = setting(2, "How many.", unit="racks", least=1, below=9)
    mode: str = setting("fan", "How.", choices=("fan", "grill"))
    light: bool = setting(True, "Whether.")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Kitchen:
    place: str = ""
    oven: Oven = section(Oven)
    name: str = setting("mine", "Whose.")


def test_settings_are_found_in_sections_with_their_dotted_names() -> None:
    found = {one.name: one.default for one in settings_of(Kitchen, "house.")}
    assert found == {
        "house.oven.heat_c": 180.0,
        "house.oven.racks": 2,
        "house.oven.mode": "fan",
        "house.oven.light": True,
        "house.name": "mine",
    }
    assert sections_of(Kitchen) == ("oven",)


def test_what_a_value_must_be_is_said_with_unit_and_range() -> None:
    needs = [one.needs for one in settings_of(Kitchen, "")]
    assert needs == [
        "a finite number of degrees, above 20 and at most 300",
        "a whole number of racks, at least 1 and below 9",
        "one of fan, grill",
        "true or false",
        "text",
    ]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"heat_c": 20.0}, "heat_c is 20.0: needs a finite number of degrees, above 20"),
        ({"heat_c": 300.5}, "heat_c is 300.5"),
        ({"heat_c": float("nan")}, "heat_c is nan"),
        ({"heat_c": float("inf")}, "heat_c is inf"),
        ({"racks": 0}, "racks is 0: needs a whole number of racks, at least 1"),
        ({"racks": 9}, "racks is 9"),
        ({"mode": "steam"}, "mode is steam: needs one of fan, grill"),
    ],
)
def test_a_value_out_of_its_range_is_refused(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Oven(**values)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=complaint):
        replace(Oven(), **values)  # type: ignore[arg-type]


def test_a_configuration_is_built_by_names() -> None:
    made = build(Kitchen, {"oven.racks": 3, "name": "yours"}, place="here")
    assert made == Kitchen("here", Oven(racks=3), "yours")


@pytest.mark.parametrize("wrong", ["oven.rack", "ovens.racks", "oven", "names", "place", "name.first"])
def test_a_name_that_is_no_setting_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="has no setting"):
        build(Kitchen, {wrong: 1})
