"""Serializes fitted models to plain JSON values, and back. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.interrupts import InterruptTimes, LayerPieces
from dunlin.cost.links import TransferModel, TransferModels
from dunlin.cost.models import PiecewiseCurve, StepModel
from dunlin.cost.processes import MessageCosts, ProcessCosts
from dunlin.cost.profile_quality import ProfileQuality
from dunlin.cost.step_fit import LearntSteps, StepSums
from dunlin.messages.types import TransferKind

_PRICES = ("fixed_s", "product_s", "prefix_s", "prefill_row_s", "decode_row_s", "decode_context_s", "sampled_row_s")
_UNSAID = {"sampled_row_s": 0.0}
"""Prices of which older profiles do not say."""


def serialize_timing(timing: EngineTiming) -> dict[str, Any]:
    """A timing as plain values, which `parse_timing` reads back. Raises TypeError unless its steps are a
    `StepModel`."""
    if not isinstance(timing.step, StepModel):
        raise TypeError(f"only a fitted StepModel is kept, not {type(timing.step).__name__}: compose that one again")
    return {
        "step": serialize_step(timing.step),
        "moves": serialize_transfers(timing.moves),
        "load_s": timing.load_s,
        "slots": timing.slots,
        "kv_bytes_per_token": timing.kv_bytes_per_token,
        "unsteadiness": [round(ratio, 3) for ratio in timing.unsteadiness],
        "host": None if timing.host is None else asdict(timing.host),
        "layers": timing.layers,
        "quality": None if timing.quality is None else asdict(timing.quality),
        "interrupts": asdict(timing.interrupts),
    }


def parse_timing(plain: Mapping[str, Any]) -> EngineTiming:
    """A timing out of plain values. Raises KeyError, TypeError or ValueError on a missing or wrong one."""
    moves = parse_transfers(plain["moves"])
    return EngineTiming(
        parse_step(plain["step"]),
        moves,
        float(plain["load_s"]),
        int(plain["slots"]),
        int(plain["kv_bytes_per_token"]),
        tuple(map(float, plain.get("unsteadiness") or ())),
        parse_process_costs(plain["host"]) if plain.get("host") else None,
        int(plain.get("layers") or 2),  # older profiles do not say
        parse_quality(plain["quality"]) if plain.get("quality") else None,  # nor this
        interrupts=parse_interrupts(plain.get("interrupts") or {}),  # nor this
    )


def parse_interrupts(plain: Mapping[str, Any]) -> InterruptTimes:
    """The times out of plain values. Raises KeyError, TypeError or ValueError on a wrong one."""
    known = {name: value for name, value in plain.items() if name != "growth"}  # of profiles before `measured`
    measured = tuple(_layer_pieces(each) for each in known.pop("measured", ()))
    times = InterruptTimes(**known, measured=measured)
    if min(times.answer_s, times.answer_token_s) < 0 or times.layer_safepoints < 1 or not times.response_s > 0:
        raise ValueError(f"no engine answers interrupts so: {times}")
    return times


def _layer_pieces(plain: Mapping[str, Any]) -> LayerPieces:
    pieces = LayerPieces(float(plain["layer_s"]), tuple(map(float, plain["starts"])))
    if not (pieces.layer_s > 0 and pieces.starts[:1] == (0.0,) and sorted(pieces.starts) == list(pieces.starts)):
        raise ValueError(f"no layer is cut so: {pieces}")
    return pieces


def parse_quality(plain: Mapping[str, Any]) -> ProfileQuality:
    """The quality out of plain values. Raises KeyError, TypeError or ValueError on a missing or wrong one."""
    steps, moves = (tuple((str(name), float(error)) for name, error in plain[part]) for part in ("steps", "moves"))
    return ProfileQuality(bool(plain["quick"]), int(plain["passes"]), steps, moves)


def parse_process_costs(plain: Mapping[str, Any]) -> ProcessCosts:
    """Host costs out of plain values. Raises KeyError, TypeError or ValueError on a missing or wrong one."""
    instance, door = MessageCosts(**plain["instance"]), MessageCosts(**plain["door"])
    costs = ProcessCosts(instance, door, float(plain["hop_s"]), bool(plain["shares_core"]))
    # Older profiles do not say.
    return replace(costs, control=MessageCosts(**plain["control"])) if "control" in plain else costs


def serialize_step(model: StepModel) -> dict[str, Any]:
    """A step model as plain values, which `parse_step` reads back."""
    prices = {name: getattr(model, name) for name in _PRICES}
    return {"tokens": _curve_to_plain(model.tokens), "rows": _curve_to_plain(model.rows), **prices}


def parse_step(plain: Mapping[str, Any]) -> StepModel:
    """A step model out of plain values. Raises KeyError, TypeError or ValueError on a missing or wrong one."""
    said = {**_UNSAID, **plain}
    prices = {name: float(said[name]) for name in _PRICES}
    if min(prices.values()) < 0:
        raise ValueError(f"no price of a step may be negative: {prices}")
    return StepModel(tokens=_curve_of(plain["tokens"]), rows=_curve_of(plain["rows"]), **prices)


def serialize_transfers(moves: TransferModels) -> dict[str, Any]:
    """Move models as plain values, which `parse_transfers` reads back."""
    return {"default": asdict(moves.default)} | {kind.name: asdict(model) for kind, model in moves.by_kind.items()}


def parse_transfers(plain: Mapping[str, Any]) -> TransferModels:
    """Move models out of plain values. Raises KeyError, TypeError or ValueError on a missing or wrong one."""
    models = {name: TransferModel(**part) for name, part in plain.items()}
    for name, model in models.items():
        if min(model.fixed_s, model.near_bytes, model.far_byte_s) < 0 or not model.bytes_per_s > 0:
            raise ValueError(f"the moves of kind {name} take no time or a negative one: {model}")
    return TransferModels(models.pop("default"), {TransferKind[name]: model for name, model in models.items()})


def serialize_learnt(learnt: LearntSteps) -> dict[str, Any]:
    """What was learnt as plain values, which `parse_learnt` reads back."""
    return asdict(learnt)


def parse_learnt(plain: Mapping[str, Any]) -> LearntSteps:
    """What was learnt out of plain values. Raises KeyError, TypeError or ValueError on a missing or wrong one."""
    small, large = _sums_of(plain["small"]), _sums_of(plain["large"])
    (prompt_error, decode_error), (of_prompts, of_decodes) = plain["errors"], plain["predicted"]
    errors, predicted = (float(prompt_error), float(decode_error)), (int(of_prompts), int(of_decodes))
    learnt = LearntSteps(small, large, int(plain["with_decodes"]), errors, predicted)
    if min(learnt.with_decodes, *errors, *predicted) < 0:
        raise ValueError(f"no steps teach so: {learnt}")
    return learnt


def _sums_of(plain: Mapping[str, Any]) -> StepSums:
    products, targets = list(map(float, plain["products"])), list(map(float, plain["targets"]))
    sums = StepSums(int(plain["steps"]), float(plain["weight"]), float(plain["unit"]), products, targets)
    sums.check()
    return sums


def _curve_to_plain(curve: PiecewiseCurve) -> dict[str, Any]:
    return {"x": list(curve.x), "y": list(curve.y)}


def _curve_of(plain: Mapping[str, Any]) -> PiecewiseCurve:
    return PiecewiseCurve(tuple(map(float, plain["x"])), tuple(map(float, plain["y"])))
