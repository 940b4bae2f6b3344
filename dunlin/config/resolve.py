"""What holds: given values decoded by msgspec, checked against their declarations and laid over preset and defaults.

Later values win: default, preset, then `sources.from_all` in its order.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from dunlin.config.errors import ConfigError
from dunlin.config.fields import Setting, build, settings_of
from dunlin.config.sources import ROLES, Given
from dunlin.policies.presets import preset_settings

T = TypeVar("T")
PRESET = "cluster.preset"
DEFAULT = "default"
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT])iB")
_POWER = {"K": 10, "M": 20, "G": 30, "T": 40}


@dataclass(frozen=True, slots=True)
class Value:
    """What holds for a setting, and where that came from."""

    setting: Setting
    value: Any
    source: str


class Settings:
    """The value of every setting of some roles, by name."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name].value

    def all(self) -> Iterable[Value]:
        """In the order of declaration."""
        return self._values.values()

    def source(self, name: str) -> str:
        """Where the value came from: `default`, `preset NAME`, a file, a variable, a flag."""
        return self._values[name].source

    def is_given(self, name: str) -> bool:
        """Whether the value was given rather than chosen by default or preset."""
        return not self.source(name).startswith((DEFAULT, "preset "))

    def given(self) -> dict[str, Any]:
        """Names to values of those that were given."""
        return {name: one.value for name, one in self._values.items() if self.is_given(name)}

    def told(self) -> str:
        """One line about those that were given, for a log."""
        given = (
            f"{one.setting.name}={one.value} ({one.source})" for one in self.all() if self.is_given(one.setting.name)
        )
        return f"settings given: {', '.join(given) or 'none'}"

    def of(self, role: str) -> dict[str, Any]:
        """The values of a role, by their names within it."""
        prefix = f"{role}."
        return {name.removeprefix(prefix): self[name] for name in self._values if name.startswith(prefix)}

    def configure(self, role: str, config: type[T], **filled_in: Any) -> T:
        """The configuration of a role; `filled_in` are its fields that are no settings.

        Raises:
            ConfigError: values that do not go together.
        """
        try:
            return build(config, self.of(role), **filled_in)
        except ValueError as error:
            raise ConfigError(f"{role}: {error}") from None


def resolve(tables: Mapping[str, type[Any]], given: Sequence[Given]) -> Settings:
    """What holds for the roles of `tables` (role to configuration class) after all that was `given`, the last wins.

    Names of other roles are taken for right: the command line of one service knows its own settings only.

    Raises:
        ConfigError: no such setting, or no value for it; all of them in one text.
    """
    known = {one.name: one for role, table in tables.items() for one in settings_of(table, f"{role}.")}
    values = {name: Value(one, one.default, DEFAULT) for name, one in known.items()}
    faults: list[str] = []
    taken: list[Value] = []
    for one in given:
        try:
            if one.name in known or not _is_elsewhere(one.name, tables):
                taken.append(_value(one, known))
        except ConfigError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError("; ".join(faults))
    preset = next((one.value for one in reversed(taken) if one.setting.name == PRESET), None)
    for name, policy in preset_settings(preset or values[PRESET].value).items():
        if name in known:
            values[name] = Value(known[name], policy, f"preset {preset or values[PRESET].value}")
    values.update({one.setting.name: one for one in taken})
    return Settings(values)


def _is_elsewhere(name: str, tables: Mapping[str, type[Any]]) -> bool:
    role = name.partition(".")[0]
    return role in ROLES and role not in tables


def _value(one: Given, known: Mapping[str, Setting]) -> Value:
    setting = known.get(one.name)
    if setting is None:
        raise ConfigError(f"{one.name} ({one.source}): there is no such setting{_guess(one.name, known)}")
    try:
        decoded = _decode(setting, one.value)
    except (msgspec.ValidationError, OverflowError):
        decoded = None
    if decoded is None or not setting.declared.admits(decoded):
        sizes = ", or a size such as 8GiB or 800MiB" if setting.declared.unit == "bytes" else ""
        raise ConfigError(f"{one.name} is {one.value!r} ({one.source}): needs {setting.needs}{sizes}")
    return Value(setting, decoded, one.source)


def _decode(setting: Setting, value: Any) -> Any:
    """The value as one of the setting's type. Text is read as numbers, truth values, lists with commas, sizes."""
    if isinstance(value, str) and setting.type == tuple[str, ...]:
        value = [word.strip() for word in value.split(",") if word.strip()]
    elif isinstance(value, str) and setting.declared.unit == "bytes" and (size := _SIZE.fullmatch(value)):
        value = int(float(size[1]) * (1 << _POWER[size[2]]))
    return msgspec.convert(value, setting.type, strict=False)


def _guess(name: str, known: Mapping[str, Setting]) -> str:
    """The setting that was probably meant: one of the same last part, else one that is spelled alike."""
    role, _, rest = name.partition(".")
    same = [one for one in known if one.endswith(f".{rest.rpartition('.')[2]}")]
    near = [one for one in same if one.startswith(f"{role}.")] or same
    near = near or difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if near:
        return f": did you mean {near[0]}?"
    roles = sorted({one.partition(".")[0] for one in known})
    if role not in roles:
        return f": names begin with {', '.join(roles)}"
    return f": see dunlin config list {role}"
