"""Strategies and overheads of engines that ship with the package: reads `devices/*.strategies.json`.

A file holds equation 7 per strategy and what the measured engine's host adds to its kernels, with attribution.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from dunlin.cost.device import DeviceError, Source
from dunlin.cost.models import EngineOverhead
from dunlin.cost.strategies import PrefillModel, Strategies, Strategy

_SUFFIX = ".strategies.json"


def parse_strategies(data: Mapping[str, Any]) -> Strategies:
    """The strategies in a parsed file. Raises DeviceError naming what is missing or wrong."""
    try:
        parts = dict(data)
        parts["prefill"] = {_strategy(text): PrefillModel(**model) for text, model in data["prefill"].items()}
        parts["overhead"] = EngineOverhead(**data["overhead"])
        parts["sources"] = tuple(Source(**source) for source in data["sources"])
        return Strategies(**parts)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DeviceError(f"the strategies of {data.get('name', 'a machine')} are damaged: {error!r}") from error


def _strategy(text: str) -> Strategy:
    sp, tp = map(int, text.split("x"))
    return Strategy(sp, tp)


def known_strategies() -> list[str]:
    """The names of those that ship with the package."""
    folder = files("dunlin.cost").joinpath("devices")
    return sorted(entry.name.removesuffix(_SUFFIX) for entry in folder.iterdir() if entry.name.endswith(_SUFFIX))


def find_strategies(name: str) -> Strategies:
    """Strategies that ship with the package. Raises DeviceError."""
    if name.lower() not in known_strategies():
        raise DeviceError(f"no strategies are called {name!r}; known: {', '.join(known_strategies())}")
    return parse_strategies(json.loads(files("dunlin.cost").joinpath("devices", name.lower() + _SUFFIX).read_text()))
