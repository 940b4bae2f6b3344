"""How a setting is declared: at its field, in a frozen dataclass per decision. Pure: cores' configurations use it.

A configuration of a role nests one dataclass per decision ("section"); a setting's name is `SECTION.FIELD` within its
role and `ROLE.SECTION.FIELD` everywhere else. Fields without a declaration are no settings: the host fills them in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")
_KEY = "setting"
_INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class SettingDeclaration:
    """What is documented at a field. The limits are of numbers: `least` and `most` belong to the range, `above` and
    `below` do not. `choices` are all the values there are, if that is not empty. `why`: the reason for the default.
    """

    doc: str
    unit: str = ""
    why: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()

    def admits(self, value: Any) -> bool:
        """Whether a value of the right type is in the range."""
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        low = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        high = (self.most is None or value <= self.most) and (self.below is None or value < self.below)
        return low and high and -_INFINITE < value < _INFINITE

    @property
    def range(self) -> str:
        """The range in words; empty if any value of the type will do."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        low = f"at least {_plain(self.least)}" if self.least is not None else ""
        low = low or (f"above {_plain(self.above)}" if self.above is not None else "")
        high = f"at most {_plain(self.most)}" if self.most is not None else ""
        high = high or (f"below {_plain(self.below)}" if self.below is not None else "")
        return " and ".join(filter(None, (low, high)))


def _plain(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared field: its dotted name, its type, its default and what was said about it."""

    name: str
    type: Any
    default: Any
    declared: SettingDeclaration

    @property
    def needs(self) -> str:
        """What a value must be, in words."""
        kinds = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}
        kind, unit = kinds.get(self.type, "a list of texts"), self.declared.unit
        if unit and self.type in (int, float):
            kind = f"a {unit}" if unit.startswith("share") else f"{kind} of {unit}"
        return ", ".join(filter(None, ("" if self.declared.choices else kind, self.declared.range)))


def setting(default: T, doc: str, **about: Any) -> T:
    """A field of a section; `about` are further fields of its `SettingDeclaration`."""
    made: T = field(default=default, metadata={_KEY: SettingDeclaration(doc, **about)})
    return made


def section(config: type[T]) -> T:
    """A field of a role's configuration that holds a section, with the section's defaults."""
    made: T = field(default_factory=config)
    return made


def check(config: Any) -> None:
    """For `__post_init__`: raises ValueError for a declared field whose value is out of its range."""
    for one in fields(config):
        declared: SettingDeclaration | None = one.metadata.get(_KEY)
        value = getattr(config, one.name)
        if declared is not None and not declared.admits(value):
            raise ValueError(f"{one.name} is {value}: needs {Setting(one.name, type(value), None, declared).needs}")


def settings_of(config: type[Any], prefix: str) -> Iterator[Setting]:
    """Every setting of a configuration and of its sections, in the order of declaration."""
    for one in fields(config):
        if is_dataclass(one.default_factory):
            yield from settings_of(one.default_factory, f"{prefix}{one.name}.")
        elif _KEY in one.metadata:
            yield Setting(prefix + one.name, one.type, one.default, one.metadata[_KEY])


def sections_of(config: type[Any]) -> tuple[str, ...]:
    """The names of its sections."""
    return tuple(one.name for one in fields(config) if is_dataclass(one.default_factory))


def build(config: type[T], values: Mapping[str, Any], **given: Any) -> T:
    """A configuration with `values` by their names within it, defaults elsewhere; `given` are fields of the host's.

    Raises:
        ValueError: it has no such setting, or a value is out of its range.
    """
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, dot, rest = name.partition(".")
        inner.setdefault(section, {})[rest if dot else ""] = value
    made = {name: _part(config, name, found) for name, found in inner.items()}
    return config(**made, **given)


def _part(config: type[Any], name: str, values: dict[str, Any]) -> Any:
    one = next((one for one in fields(config) if one.name == name), None)
    if one is not None and is_dataclass(one.default_factory) and "" not in values:
        return build(one.default_factory, values)
    if one is not None and _KEY in one.metadata and "" in values:
        return values[""]
    wrong = name if "" in values else f"{name}.{next(iter(values))}"
    has = ", ".join(each.name for each in settings_of(config, ""))
    raise ValueError(f"{config.__name__} has no setting {wrong!r}; it has {has}")
