"""From the flags of `dunlin sim` to the cases that it simulates: presets, instances, settings."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cli.common.errors import USAGE, CliError

if TYPE_CHECKING:
    from dunlin.config.resolve import Settings
    from dunlin.workload.loadgen.slo import Slos
    from simulator.study.engine_groups import EngineGroup
    from simulator.study.sweep import Case

_BATCH = "batch"
"""The class whose requests have no objectives."""


def make_cases(arguments: argparse.Namespace, slos: "Slos") -> "list[Case]":
    """A case for each preset that was asked for. Raises CliError."""
    from dunlin.policies.presets import PRESETS

    asked = arguments.preset or _settings_of(arguments)["cluster.preset"]
    names = list(PRESETS) if asked == "all" else [name.strip() for name in asked.split(",")]
    for name in names:
        if name not in PRESETS:
            raise CliError(f"--preset {name}: there is none; choose of {', '.join(PRESETS)}, or all", USAGE)
    if len(set(names)) < len(names):
        raise CliError(f"--preset {arguments.preset}: one is named twice", USAGE)
    if arguments.find_instances and not arguments.slo:
        raise CliError("--find-instances needs --slo: what shall be met?", USAGE)
    return [_case(arguments, name, slos) for name in names]


def engines(arguments: argparse.Namespace) -> "tuple[EngineGroup, ...]":
    """The instances that `--engine` names; empty: all are alike. Raises CliError."""
    from simulator.study.engine_groups import parse_engine_group

    if arguments.engine and (arguments.find_instances or arguments.instances != 1):
        raise CliError("--engine says how many instances there are: leave --instances and --find-instances out", USAGE)
    try:
        return tuple(parse_engine_group(text, arguments.device, arguments.tp) for text in arguments.engine)
    except ValueError as error:
        raise CliError(f"--engine {error}", USAGE) from None


def objectives_of(slos: "Slos") -> dict[str, float]:
    """The settings by which instances aim at what `--slo` promises: the strictest of the interactive classes."""
    promised = [slo for label, slo in slos.items() if label != _BATCH]
    limits = {
        "instance.objectives.ttft_s": [slo.ttft for slo in promised if slo.ttft is not None],
        "instance.objectives.tpot_s": [slo.tpot for slo in promised if slo.tpot is not None],
    }
    return {name: min(found) for name, found in limits.items() if found}


def _case(arguments: argparse.Namespace, preset: str, slos: "Slos") -> "Case":
    from services.settings import is_simulated
    from simulator.study.sweep import Case

    given: Mapping[str, object] = {**objectives_of(slos), **_settings_of(arguments, preset).given()}
    return Case(
        preset=preset,
        instances=arguments.instances,
        device=arguments.device,
        shape=arguments.model_shape,
        tp=arguments.tp,
        nodes=arguments.nodes or 0,
        dispatchers=arguments.dispatchers,
        seed=arguments.seed,
        tier_bytes=int(arguments.host_gb * 1e9),
        max_positions=arguments.max_positions or 0,
        story_of=arguments.explain or "",
        overhead=arguments.overhead,
        oracle=arguments.oracle,
        sampled=arguments.sampled,
        has_profiles=arguments.has_profiles,
        links=_links_of(arguments.link),
        settings=tuple(
            (name, value) for name, value in given.items() if name != "cluster.preset" and is_simulated(name)
        ),
        engines=engines(arguments),
    )


def _links_of(given: Sequence[str]) -> tuple[tuple[str, float], ...]:
    found = []
    for text in given:
        name, _, rate = text.partition("=")
        try:
            found.append((name, float(rate) * 1e9))
        except ValueError:
            raise CliError(f"--link {text}: say NAME=GB/s", USAGE) from None
    return tuple(found)


def _settings_of(arguments: argparse.Namespace, preset: str = "") -> "Settings":
    """What holds for a case with that preset; `--set PRESET:NAME=VALUE` counts with that one alone."""
    from dunlin.config.errors import ConfigError
    from dunlin.config.resolve import PRESET, resolve
    from dunlin.config.sources import Given, from_all
    from dunlin.policies.presets import PRESETS
    from services.settings import TABLES

    words = []
    for text in arguments.set:
        only, colon, word = text.partition(":")
        if "=" in only or not colon:
            only, word = "", text
        if only and only not in PRESETS:
            raise CliError(f"--set {text}: no preset {only!r}; there are {', '.join(PRESETS)}", USAGE)
        if only in ("", preset):
            words.append(word)
    flags = [Given(PRESET, preset, "--preset")] if preset else []
    try:
        return resolve(TABLES, from_all(arguments.config, words, flags))
    except ConfigError as error:
        raise CliError(str(error), USAGE) from None
