"""The names under which a checkout keeps the parts of its engine: this one, 58b2b5e3 and 5d01139.

Everything is looked up when it is called, for the tree is chosen when the process runs. A constructor whose message
changes gets a function of the old arguments here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineParts:
    """`load` as `dunlin.engine.decoder.loading.loader.load_model`; `runner` as `EngineRunner`, which also takes what
    `options` gives for a decoder; messages' constructors.
    """

    load: Callable[..., Any]
    numerics: Callable[[], Any]
    runner: Callable[..., Any]
    open: Callable[..., Any]
    close: Callable[..., Any]
    step: Callable[..., Any]
    step_done: type[Any]
    sampling: Callable[..., Any]
    options: Callable[[Any], dict[str, Any]]


_THIS = {
    "load": "engine.decoder.loading.loader.load_model",
    "numerics": "engine.decoder.numerics.fast_numerics",
    "runner": "engine.execution.runner.EngineRunner",
    "open": "messages.engine.Open",
    "close": "messages.engine.Close",
    "step": "messages.engine.Step",
    "step_done": "messages.engine.StepDone",
    "sampling": "messages.types.SamplingParams",
}
_58B2B5E3 = _THIS | {"load": "engine.decoder.loader.load_model"}
_5D01139 = _THIS | {
    "load": "engine.load.load_model",
    "numerics": "engine.numerics.fast",
    "runner": "engine.runner.Runner",
    "sampling": "messages.types.Sampling",
}


def engine_parts(tree: Path) -> EngineParts:
    """The parts of the tree's engine; the tree is first on `sys.path`.

    :raises SystemExit: it has no engine that is known here.
    """
    for names in (_THIS, _58B2B5E3, _5D01139):
        module, _, _ = names["load"].rpartition(".")
        if (tree / "dunlin" / f"{module.replace('.', '/')}.py").exists():
            parts = EngineParts(**{part: _look_up(name) for part, name in names.items()}, options=_no_options)
            return parts if names is _5D01139 else replace(parts, numerics=_chosen_numerics, options=_chosen_options)
    raise SystemExit(f"{tree} is no checkout of dunlin, or of a commit whose engine has other names: name another")


def _chosen_numerics() -> Any:
    """The fast mode with what an engine's process chooses here."""
    numerics = import_module("dunlin.engine.decoder.numerics")
    chosen, description = numerics.choose_fast_numerics()
    print(description, flush=True)
    return getattr(numerics, "for_bf16", _kept)(chosen)


def _kept(numerics: Any) -> Any:
    """What trees before `for_bf16` choose."""
    return numerics


def _chosen_options(decoder: Any) -> dict[str, Any]:
    """What an engine's process computes decode steps by."""
    device = _look_up("engine.device.choice.open_device")("cpu")
    begin = device.begin_segments
    return {} if begin is None else {"begin_segments": begin(decoder), "pacer": device.pacer}


def _no_options(decoder: Any) -> dict[str, Any]:
    return {}


def _look_up(name: str) -> Any:
    module, _, attribute = f"dunlin.{name}".rpartition(".")
    return getattr(import_module(module), attribute)
