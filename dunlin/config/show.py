"""Settings in words: what holds and where it came from, as TOML; and what there is to set, as Markdown."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from dunlin.config.fields import Setting, settings_of
from dunlin.config.resolve import DEFAULT, Settings, Value
from dunlin.config.sources import ROLES, variable


def as_toml(settings: Settings, roles: Sequence[str] = ROLES) -> str:
    """What holds, as a file that `--config` takes; behind each value where it came from."""
    lines: list[str] = []
    shown = [one for one in settings.all() if one.setting.name.partition(".")[0] in roles]
    for table, values in groupby(shown, lambda one: one.setting.name.rpartition(".")[0]):
        lines += ["", f"[{table}]", *_aligned(values)]
    return "\n".join(lines[1:])


def _aligned(values: Iterable[Value]) -> list[str]:
    pairs = [(f"{one.setting.name.rpartition('.')[2]} = {toml(one.value)}", _origin(one)) for one in values]
    width = max(len(text) for text, _ in pairs)
    return [f"{text:{width}}  # {origin}" for text, origin in pairs]


def _origin(one: Value) -> str:
    same = one.value == one.setting.default
    return one.source if one.source == DEFAULT or same else f"{one.source}; default: {toml(one.setting.default)}"


def as_values(settings: Settings, roles: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The same for programs: name to value, source and default."""
    return {
        one.setting.name: {"value": one.value, "source": one.source, "default": one.setting.default}
        for one in settings.all()
        if one.setting.name.partition(".")[0] in roles
    }


def toml(value: Any) -> str:
    """A value as TOML spells it: as JSON does, for what settings hold."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def describe(tables: Mapping[str, type[Any]], live_only: Sequence[str], about: str = "") -> Iterator[str]:
    """Lines of Markdown about every setting whose name begins with `about`; `live_only`: no matter to a simulation."""
    for role, config in tables.items():
        settings = [one for one in settings_of(config, f"{role}.") if one.name.startswith(about)]
        if settings:
            yield from ("", f"## {role}")
        for table, found in groupby(settings, lambda one: one.name.rpartition(".")[0]):
            yield ""
            if table != role:
                yield from (f"### {table}", "")
            for one in found:
                yield from _described(one, one.name in live_only)


def _described(one: Setting, live_only: bool) -> Iterator[str]:
    declared = one.declared
    yield f"- **`{one.name}`** = `{toml(one.default)}` ({one.needs})  "
    yield f"  {declared.doc}{' Live only.' if live_only else ''}" + ("  " if declared.why else "")
    if declared.why:
        yield f"  Default: {declared.why}."


def head(example: Setting) -> str:
    """What stands before the list."""
    return f"""\
# Settings

Generated from the declarations (`services/*/config.py`, `services/*/process_config.py`) by `dunlin config list
--markdown`; a test fails when it is stale. Every setting has one name, `ROLE.SECTION.FIELD`. What comes later wins:

1. its default, below
2. the preset (`cluster.preset`), for policies
3. a TOML file: `dunlin up --config FILE`, `dunlin serve ROLE --config FILE`, `dunlin sim --config FILE`; repeated, the
   later file wins. Tables are the parts of names. One file does for all roles, each takes its own: `deploy/dunlin.toml`
4. the environment: `{variable(example.name)}=1024`
5. `--set {example.name}=1024`, to the same commands; it may be repeated
6. an older flag that is short for a setting (`--budget-tokens 1024`); `--help` names the setting of each

A name that does not exist and a value out of its range end the command with exit code 2 and say what was probably
meant, where it was given and which values will do. Sizes in bytes may be written `"8 GiB"`; lists in `--set` and the
environment have commas. `dunlin config show` prints what holds with the given files, environment and `--set`, and where
each value came from; its output is a file that `--config` takes.

What a process is called, where it listens, its etcd and its certificates are no settings but flags of `dunlin serve`.
*Live only* marks what a simulation has not got: it takes the setting, checks it and does without."""
