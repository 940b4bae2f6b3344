"""Settings on a command line: `--config`, `--set`, and older flags that are short for a setting."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dunlin.config.fields import settings_of
from dunlin.config.resolve import Settings, resolve
from dunlin.config.sources import Given, from_all

SET_HELP = "a setting by its name, as instance.scheduler.budget_tokens=1024; may be repeated (docs/settings.md)"


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """The flags by which every setting can be given. The parser's other flags win over them."""
    parser.set_defaults(given=[])
    parser.add_argument(
        "--config", action="append", default=[], type=Path, metavar="FILE", help="settings, as TOML; may be repeated"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=SET_HELP)


class Shorthands:
    """Adds flags that are short for settings to a parser or a group of one."""

    def __init__(self, tables: Mapping[str, type[Any]]) -> None:
        self._known = {one.name: one for role, table in tables.items() for one in settings_of(table, f"{role}.")}

    def add(self, to: Any, flag: str, name: str, text: str, *, unit: int = 1, **more: Any) -> None:
        """`--flag VALUE`. `unit`: the setting counts in units so many times smaller than the flag. `several=True`:
        each use of the flag adds one to the setting's list."""
        setting = self._known[name]
        default = setting.default // unit if unit > 1 else setting.default
        shown = "" if default in ("", ()) or "default" in text else f"; default: {default}"
        choices = setting.declared.choices
        if choices:
            more = {"choices": choices, "type": type(choices[0]), **more}
        if unit > 1:
            more = {"type": int, **more}
        to.add_argument(flag, action=_Shorthand, setting=name, unit=unit, help=f"{text} ({name}{shown})", **more)

    def switch(self, to: Any, flag: str, name: str, text: str) -> None:
        """`--flag` alone, for the other truth value than the default."""
        value = not self._known[name].default
        to.add_argument(flag, action=_Shorthand, setting=name, nargs=0, const=value, help=f"{text} ({name})")


class _Shorthand(argparse.Action):
    """Notes the value both under the flag's own name and as given for the setting."""

    def __init__(self, *arguments: Any, setting: str, unit: int = 1, several: bool = False, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._setting = setting
        self._unit = unit
        self._several = several

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        value = self.const if self.nargs == 0 else values
        if self._several:
            value = [*(getattr(namespace, self.dest) or ()), value]
        setattr(namespace, self.dest, value)
        given = Given(self._setting, value * self._unit if self._unit > 1 else value, option or self.dest)
        namespace.given = [*namespace.given, given]


def read_settings(arguments: argparse.Namespace, tables: Mapping[str, type[Any]]) -> Settings:
    """What holds by the flags that `add_config_flags` and `Shorthands` added. Raises ConfigError."""
    return resolve(tables, from_all(arguments.config, arguments.set, arguments.given))
