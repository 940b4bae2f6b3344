"""Flags that are short for settings: what they give, and that the last of all ways wins."""

from dataclasses import dataclass

import pytest

from dunlin.config.fields import check, section, setting
from dunlin.config.flags import Shorthands, add_config_flags
from dunlin.config.sources import Given
from dunlin.runtime.arguments import CommandParser


@dataclass(frozen=True, slots=True)
class Oven:
    racks: int = setting(2, "How many.", unit="racks", least=1)
    room_bytes: int = setting(8 << 20, "How large.", unit="bytes", least=1)
    mode: str = setting("fan", "How.", choices=("fan", "grill"))
    light: bool = setting(True, "Whether.")
    dishes: tuple[str, ...] = setting((), "Which.")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Kitchen:
    oven: Oven = section(Oven)


def parser() -> CommandParser:
    made = CommandParser(prog="cook")
    add_config_flags(made)
    short = Shorthands({"kitchen": Kitchen})
    short.add(made, "--racks", "kitchen.oven.racks", "how many", metavar="N")
    short.add(made, "--room-mib", "kitchen.oven.room_bytes", "how large", unit=1 << 20)
    short.add(made, "--mode", "kitchen.oven.mode", "how")
    short.add(made, "--dish", "kitchen.oven.dishes", "which", several=True)
    short.switch(made, "--dark", "kitchen.oven.light", "no light")
    return made


def test_a_flag_gives_its_setting_and_keeps_its_own_name() -> None:
    words = ["--racks", "3", "--room-mib", "2", "--dark", "--mode=grill", "--dish", "a", "--dish", "b"]
    arguments = parser().parse_args(words)
    assert arguments.given == [
        Given("kitchen.oven.racks", "3", "--racks"),
        Given("kitchen.oven.room_bytes", 2 << 20, "--room-mib"),
        Given("kitchen.oven.light", False, "--dark"),
        Given("kitchen.oven.mode", "grill", "--mode"),
        Given("kitchen.oven.dishes", ["a"], "--dish"),
        Given("kitchen.oven.dishes", ["a", "b"], "--dish"),
    ]
    assert (arguments.racks, arguments.dish) == ("3", ["a", "b"])


def test_a_flag_that_is_not_used_gives_nothing() -> None:
    assert parser().parse_args([]).given == []


def test_help_names_the_setting_and_its_default() -> None:
    said = " ".join(parser().format_help().split())
    assert "how large (kitchen.oven.room_bytes; default: 8)" in said
    assert "no light (kitchen.oven.light)" in said


def test_a_wrong_choice_is_told_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--mode", "gril"])
    assert "did you mean grill?" in capsys.readouterr().err
