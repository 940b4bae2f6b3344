"""Fitted models as plain values for JSON, and back. Pure."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dunlin.cost.models import (
    Curve,
    EngineTiming,
    HostCosts,
    MessageCosts,
    MoveModel,
    MoveModels,
    Quality,
    StepModel,
)
from dunlin.messages.types import MoveKind

_PRICES = ("fixed_s", "product_s", "prefix_s", "prefill_row_s", "decode_row_s", "decode_context_s")


def timing_to_plain(timing: EngineTiming) -> dict[str, Any]:
    """What `timing_of` reads back. Raises TypeError unless the step model is a fitted one (`StepModel`)."""
    if not isinstance(timing.step, StepModel):
        raise TypeError(f"only a fitted StepModel is kept, not {type(timing.step).__name__}: compose that one again")
    return {
        "step": step_to_plain(timing.step),
        "moves": moves_to_plain(timing.moves),
        "load_s": timing.load_s,
        "slots": timing.slots,
        "kv_bytes_per_token": timing.kv_bytes_per_token,
        "unsteadiness": [round(ratio, 3) for ratio in timing.unsteadiness],
        "host": None if timing.host is None else asdict(timing.host),
        "layers": timing.layers,
        "quality": None if timing.quality is None else asdict(timing.quality),
    }


def timing_of(plain: Mapping[str, Any]) -> EngineTiming:
    """Raises KeyError, TypeError or ValueError on what is missing or wrong."""
    moves = moves_of(plain["moves"])
    return EngineTiming(
        step_of(plain["step"]),
        moves,
        float(plain["load_s"]),
        int(plain["slots"]),
        int(plain["kv_bytes_per_token"]),
        tuple(map(float, plain.get("unsteadiness") or ())),
        host_of(plain["host"]) if plain.get("host") else None,
        int(plain.get("layers") or 2),  # older profiles do not say
        quality_of(plain["quality"]) if plain.get("quality") else None,  # nor this
    )


def quality_of(plain: Mapping[str, Any]) -> Quality:
    """Raises KeyError, TypeError or ValueError on what is missing or wrong."""
    steps, moves = (tuple((str(name), float(error)) for name, error in plain[part]) for part in ("steps", "moves"))
    return Quality(bool(plain["quick"]), int(plain["passes"]), steps, moves)


def host_of(plain: Mapping[str, Any]) -> HostCosts:
    """Raises KeyError, TypeError or ValueError on what is missing or wrong."""
    instance, door = MessageCosts(**plain["instance"]), MessageCosts(**plain["door"])
    return HostCosts(instance, door, float(plain["hop_s"]), bool(plain["shares_core"]))


def step_to_plain(model: StepModel) -> dict[str, Any]:
    """What `step_of` reads back."""
    prices = {name: getattr(model, name) for name in _PRICES}
    return {"tokens": _curve_to_plain(model.tokens), "rows": _curve_to_plain(model.rows), **prices}


def step_of(plain: Mapping[str, Any]) -> StepModel:
    """Raises KeyError, TypeError or ValueError on what is missing or wrong."""
    prices = {name: float(plain[name]) for name in _PRICES}
    if min(prices.values()) < 0:
        raise ValueError(f"no price of a step may be negative: {prices}")
    return StepModel(tokens=_curve_of(plain["tokens"]), rows=_curve_of(plain["rows"]), **prices)


def moves_to_plain(moves: MoveModels) -> dict[str, Any]:
    """What `moves_of` reads back."""
    return {"default": asdict(moves.default)} | {kind.name: asdict(model) for kind, model in moves.by_kind.items()}


def moves_of(plain: Mapping[str, Any]) -> MoveModels:
    """Raises KeyError, TypeError or ValueError on what is missing or wrong."""
    models = {name: MoveModel(**part) for name, part in plain.items()}
    for name, model in models.items():
        if model.fixed_s < 0 or not model.bytes_per_s > 0:
            raise ValueError(f"the moves of kind {name} take no time or a negative one: {model}")
    return MoveModels(models.pop("default"), {MoveKind[name]: model for name, model in models.items()})


def _curve_to_plain(curve: Curve) -> dict[str, Any]:
    return {"x": list(curve.x), "y": list(curve.y)}


def _curve_of(plain: Mapping[str, Any]) -> Curve:
    return Curve(tuple(map(float, plain["x"])), tuple(map(float, plain["y"])))
