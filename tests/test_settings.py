"""Every documented setting can be set live and in the simulator by the same name, and is shown with its source.

Live: through the command line of the service's own process, by a file, the environment, `--set`. Simulated: through
`dunlin sim`, up to the configuration that the simulated core is made with.
"""

import argparse
import importlib
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest

from cli.commands.operate import config as config_command
from cli.commands.simulate.cases import make_cases
from cli.main import main, make_parser
from dunlin.config.fields import Setting, settings_of
from dunlin.config.resolve import Settings
from dunlin.config.show import toml
from dunlin.config.sources import Given, as_word, variable
from dunlin.policies.presets import DEFAULT_PRESET, preset_settings
from services.settings import TABLES, is_simulated
from simulator.cluster.spec import ClusterSpec
from simulator.study.run_case import cluster_of

ALL = {one.name: one for role, table in TABLES.items() for one in settings_of(table, f"{role}.")}
SERVICE = {"manager": "global_manager", "cluster": "dispatcher"}
TEXTS = {
    "cluster.model": "/models/other",
    "cluster.lora": ("terse=/adapters/terse", "kind=/adapters/kind"),
    "instance.engine.device": "interpret",
    "dispatcher.http.origins": ("https://a.example", "*"),
}
"""Where not any text will do."""
CHOSEN = preset_settings(DEFAULT_PRESET)
"""What the default preset sets: settings that have another default of their own."""


def default(one: Setting) -> Any:
    """What a service has that was told nothing."""
    return CHOSEN.get(one.name, one.default)


def other(one: Setting) -> Any:
    """A value that is not the default, within the range."""
    declared = one.declared
    if declared.choices:
        return next((choice for choice in declared.choices if choice != default(one)), default(one))
    if one.type is bool:
        return not one.default
    if one.type not in (int, float):
        return TEXTS.get(one.name, "other")
    halved: Any = one.default // 2 if one.type is int else one.default / 2
    tries = (halved, one.default + 1, 1)
    return next(value for value in tries if value != one.default and declared.admits(value))


def live(one: Setting, arguments: list[str]) -> Settings:
    """What holds for the process that has the setting, started with these arguments."""
    role = one.name.partition(".")[0]
    module = importlib.import_module(f"services.{SERVICE.get(role, role)}.__main__")
    settings: Settings = module.settings_of(module.parser().parse_args(arguments))
    return settings


def in_file(one: Setting, folder: Path) -> str:
    table, _, field = one.name.rpartition(".")
    (folder / "s.toml").write_text(f"[{table}]\n{field} = {toml(other(one))}\n")
    return f"--config={folder / 's.toml'}"


def word(one: Setting) -> str:
    return f"--set={as_word(Given(one.name, other(one), ''))}"


def held(role: str, settings: Settings, name: str) -> Any:
    """The setting's value in the configuration that the role's process is made with."""
    return reduce(getattr, name.split(".")[1:], settings.configure(role, TABLES[role]))


@pytest.mark.parametrize("one", ALL.values(), ids=lambda one: one.name)
def test_it_is_set_live(one: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role, value = one.name.partition(".")[0], other(one)
    if value != default(one):  # a choice of one
        assert live(one, [])[one.name] != value
    for arguments, environ in (
        ([in_file(one, tmp_path)], {}),
        ([word(one)], {}),
        ([], {variable(one.name): as_word(Given(one.name, value, "")).partition("=")[2]}),
    ):
        with monkeypatch.context() as patched:
            for name, text in environ.items():
                patched.setenv(name, text)
            settings = live(one, arguments)
        assert settings[one.name] == value
        assert settings.is_given(one.name)
        assert held(role, settings, one.name) == value


@pytest.mark.parametrize("name", [name for name, policy in CHOSEN.items() if policy != ALL[name].default])
def test_what_the_default_preset_chooses_instead_of_the_default_is_said(name: str) -> None:
    assert ALL[name].declared.why.endswith(f"the default preset chooses {CHOSEN[name]}")


@cache
def the_parser() -> argparse.ArgumentParser:
    """The command line's, made once."""
    return make_parser()


def simulated(arguments: list[str]) -> ClusterSpec:
    parsed = the_parser().parse_args(["sim", "--workload", "poisson:rate=1", *arguments])
    (case,) = make_cases(parsed, {})
    return cluster_of(case)


def core_config(spec: ClusterSpec, role: str) -> Any:
    made = {"instance": lambda: spec.instance_config(""), "kvstore": lambda: spec.kvstore_config("")}
    return made.get(role, getattr(spec, f"{role}_config"))()


@pytest.mark.parametrize("one", ALL.values(), ids=lambda one: one.name)
def test_it_is_set_in_the_simulator_by_the_same_name(one: Setting, tmp_path: Path) -> None:
    role, rest = one.name.split(".", 1)
    for argument in (in_file(one, tmp_path), word(one)):
        spec = simulated([argument])
        if one.name == "cluster.preset":
            assert spec.preset == other(one)
        elif is_simulated(one.name):
            assert reduce(getattr, rest.split("."), core_config(spec, role)) == other(one)


@pytest.mark.parametrize("one", ALL.values(), ids=lambda one: one.name)
def test_it_is_shown_with_where_it_came_from(one: Setting, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    role, field = one.name.partition(".")[0], one.name.rpartition(".")[2]
    assert main(["config", "show", "--role", role, word(one)]) == 0
    shown = capsys.readouterr().out
    assert f"{field} = {toml(other(one))}" in shown
    assert "# --set" in shown
    (tmp_path / "again.toml").write_text(shown)
    assert main(["config", "show", "--role", role, "--json", "--config", str(tmp_path / "again.toml")]) == 0
    assert str(tmp_path / "again.toml") in capsys.readouterr().out


def test_a_simulation_refuses_what_a_service_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--workload", "poisson:rate=1,duration=60", "--set", "dispatcher.http.max_connections=0"]) == 2
    assert "dispatcher.http.max_connections is '0' (--set): needs" in capsys.readouterr().err


@pytest.mark.parametrize("one", ALL.values(), ids=lambda one: one.name)
def test_it_is_documented(one: Setting) -> None:
    assert one.declared.doc.endswith(".")
    assert one.declared.why
    assert not one.declared.why.endswith(".")
    if one.type in (int, float):
        assert one.declared.unit
        assert one.declared.range
    if one.name.endswith("_s"):
        assert one.declared.unit == "seconds"
    assert one.declared.admits(one.default)


def test_the_page_of_settings_is_not_stale(root: Path) -> None:
    fresh = "run `dunlin config list --markdown > docs/settings.md`"
    assert (root / "docs/settings.md").read_text() == config_command.page() + "\n", fresh


@pytest.mark.parametrize("role", ["dispatcher", "instance", "kvstore", "global_manager", "monitor"])
def test_a_service_does_not_start_with_a_setting_that_cannot_be(role: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", role, "--name", "x", "--set", "cluster.preset=best"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"dunlin serve {role}: cluster.preset is 'best' (--set): needs one of chunked" in said
