"""Where values of settings come from: a TOML file, the environment, `--set`. Nothing is checked here but the form."""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dunlin.config.errors import ConfigError

ROLES = ("cluster", "dispatcher", "instance", "kvstore", "manager", "monitor")
"""The first part of each setting's name."""
_PREFIX = "DUNLIN_"
_BETWEEN = "__"


@dataclass(frozen=True, slots=True)
class Given:
    """A value that was given for the setting `name`, as it was given; `source` says where."""

    name: str
    value: Any
    source: str


def from_file(path: Path) -> list[Given]:
    """A TOML file: tables are the parts of names. Raises ConfigError: it cannot be read, or is no TOML."""
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from None
    except RecursionError:
        raise ConfigError(f"--config {path}: lists and tables are nested too deeply") from None
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise ConfigError(f"--config {path}: {error}") from None
    return [Given(name, value, str(path)) for name, value in _flat(tables, "")]


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + name.replace(".", _BETWEEN).upper()


def from_environment(environ: Mapping[str, str]) -> list[Given]:
    """`DUNLIN_ROLE__SECTION__FIELD`, in alphabetical order; other DUNLIN_ variables are no settings."""
    found = []
    for key in sorted(environ):
        role, between, rest = key.removeprefix(_PREFIX).lower().partition(_BETWEEN)
        if key.startswith(_PREFIX) and between and role in ROLES:
            found.append(Given(f"{role}.{rest.replace(_BETWEEN, '.')}", environ[key], key))
    return found


def from_words(words: Sequence[str]) -> list[Given]:
    """`NAME=VALUE` of each `--set`. Raises ConfigError: there is no `=`."""
    found = []
    for word in words:
        name, equals, value = word.partition("=")
        if not (name.strip() and equals):
            raise ConfigError(f"--set {word}: give NAME=VALUE, such as instance.scheduler.budget_tokens=1024")
        found.append(Given(name.strip(), value.strip(), "--set"))
    return found


def as_word(one: Given) -> str:
    """What `--set` takes for it."""
    value = one.value
    if isinstance(value, bool):
        return f"{one.name}={str(value).lower()}"
    return f"{one.name}={','.join(value) if isinstance(value, list | tuple) else value}"


def from_all(files: Sequence[Path], words: Sequence[str], flags: Sequence[Given] = ()) -> list[Given]:
    """Everything that was given, what wins last: files in their order, the environment, `--set`, other flags."""
    given = [one for path in files for one in from_file(path)]
    return [*given, *from_environment(os.environ), *from_words(words), *flags]
