"""Configurations by keywords: `scheduler__budget_tokens=8` is the setting `scheduler.budget_tokens` of its role."""

from typing import Any, TypeVar

from dunlin.config.fields import build, settings_of
from dunlin.policies.presets import preset_settings

T = TypeVar("T")


def configured(config: type[T], *, preset: str = "", role: str = "", **values: Any) -> T:
    """A configuration of `config` with those settings; others are fields that a host fills in (`node`). With `preset`
    the policies of `role` are that preset's.
    """
    known = {one.name for one in settings_of(config, "")}
    dotted = {name.replace("__", "."): value for name, value in values.items() if "__" in name}
    assert dotted.keys() <= known, dotted.keys() - known
    chosen = preset_settings(preset, role) if preset else {}
    return build(config, {**chosen, **dotted}, **{name: value for name, value in values.items() if "__" not in name})
