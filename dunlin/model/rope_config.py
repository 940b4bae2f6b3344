"""How a model turns its queries and keys by position: what of it stands in a `config.json`.

Two kinds have frequencies that depend on how long a text gets: `dynamic` beyond the positions that the file names,
`longrope` beyond those of the first training. dunlin takes texts up to there (`most_positions`), so a model's
frequencies never change: KV of a prefix is worth the same in every text. `yarn` has the same for all of them, and is
added to files that name the positions of the first training alone: texts may be as long as it stretches those.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dunlin.model.config_reader import MOST_NUMBER, ConfigReader, is_number
from dunlin.model.families import FULL, SLIDING, ModelFamily

_NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""The keys without which a kind of rope cannot be computed."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. `kind`: one of a family's `rope_kinds`; the factors matter to the kinds that use them.

    `fraction` of a head is turned. Cosines and sines are multiplied by `attention_factor`. `factors` divide the
    frequencies one by one (longrope, short texts). `stretched_positions`: what yarn makes of the positions of the first
    training; 0 where the file does not name those.
    """

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    fraction: float = 1.0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    factors: tuple[float, ...] = ()
    stretched_positions: int = 0

    def turned(self, head_dim: int) -> int:
        """How many dimensions of a head set the frequencies; an odd one is turned with the next."""
        return int(head_dim * self.fraction)

    def most_positions(self, max_positions: int) -> int:
        """Up to how many tokens of text the frequencies are these, of a file that says `max_positions`."""
        if self.kind == "longrope":
            return min(max_positions, self.original_max_positions)
        return max(max_positions, self.stretched_positions)


def read_ropes(
    reader: ConfigReader, family: ModelFamily, max_positions: int, head_dim: int
) -> tuple[RopeConfig, RopeConfig | None]:
    """The rope of a model, and that of its layers with a window where these have one of their own."""
    found = reader.values.get("rope_scaling") or reader.values.get("rope_parameters") or {}
    if not isinstance(found, dict):
        reader.fault("the rope parameters are not an object")
        found = {}
    given: dict[str, Any] = found
    by_layer = [key for key in (FULL, SLIDING) if isinstance(given.get(key), dict)]
    if not family.local_rope:
        if by_layer:
            reader.fault(f"rope parameters of {by_layer[0]} alone are not supported", "use a checkpoint without them")
            return RopeConfig(), None
        return _read_rope(reader, given, family, max_positions, head_dim, "rope_theta"), None
    if given and not by_layer and "rope_parameters" in reader.values and given is reader.values["rope_parameters"]:
        reader.fault(f"`rope_parameters` must name {FULL} and {SLIDING}", "correct the file")
    if given and given is reader.values.get("rope_scaling"):
        _refuse_unread_scaling(reader, given, by_layer)
    far, near = (given.get(FULL) or {}, given.get(SLIDING) or {}) if by_layer else _scaled_by_layer(reader, given)
    return (
        _read_rope(reader, far, family, max_positions, head_dim, "rope_theta"),
        _read_rope(reader, near, family, max_positions, head_dim, "rope_local_base_freq"),
    )


def _refuse_unread_scaling(reader: ConfigReader, scaling: Mapping[str, Any], by_layer: list[str]) -> None:
    """Of a family whose layers with a window have a base of their own transformers 5 passes over both in silence, and
    computes without scaling; version 4 read the first.
    """
    if by_layer:
        reader.fault(f"`rope_scaling` must not name {by_layer[0]}", "name the layers' kinds in `rope_parameters`")
    elif "rope_type" not in scaling and scaling.get("type", "default") != "default":
        kind = scaling["type"]
        reader.fault(f"`type` {kind!r} in `rope_scaling` is read by some and not by others", "call it `rope_type`")


def _scaled_by_layer(reader: ConfigReader, scaling: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`rope_scaling` changes, key by key, what `rope_parameters` say of the layers without a window."""
    beside = reader.values.get("rope_parameters")
    found = [beside.get(key) if isinstance(beside, dict) else None for key in (FULL, SLIDING)]
    far, near = (each if isinstance(each, dict) else {} for each in found)
    return {**far, **scaling}, near


def _read_rope(
    reader: ConfigReader,
    given: Mapping[str, Any],
    family: ModelFamily,
    max_positions: int,
    head_dim: int,
    theta_key: str,
) -> RopeConfig:
    inner = ConfigReader(reader.path, given, reader.faults)
    kind = given.get("rope_type", given.get("type", "default"))
    kind = family.rope_aliases.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in family.rope_kinds:
        reader.fault(
            f"rope type {kind!r} is not supported", f"of this family dunlin runs {', '.join(family.rope_kinds)}"
        )
        return RopeConfig()
    outside = reader.values.get("original_max_position_embeddings") is not None
    original = (reader if outside else inner).positive("original_max_position_embeddings", max_positions)
    for key in _NEEDED.get(kind, ()):
        if given.get(key) is None:
            reader.fault(f"`{key}` of rope type {kind} is missing")
    factor = inner.number("factor", 1.0) if given.get("factor") is not None else 1.0
    is_named = outside or given.get("original_max_position_embeddings") is not None
    rope = RopeConfig(
        theta=inner.number("rope_theta", reader.number(theta_key, 10_000.0)),
        kind=kind,
        factor=factor,
        low_freq_factor=inner.number("low_freq_factor", 1.0),
        high_freq_factor=inner.number("high_freq_factor", 4.0),
        original_max_positions=original,
        fraction=_fraction(reader, given, family),
        attention_factor=_attention_factor(inner, kind, max_positions, original),
        beta_fast=_number_or_zero(inner, "beta_fast") or 32.0,
        beta_slow=_number_or_zero(inner, "beta_slow") or 1.0,
        truncate=inner.flag("truncate", "truncate" not in given),  # null, which some writers leave, means false
        factors=_factors(inner) if kind == "longrope" else (),
        stretched_positions=int(original * factor) if kind == "yarn" and is_named else 0,
    )
    _check_dims(reader, rope, head_dim)
    return rope


def _check_dims(reader: ConfigReader, rope: RopeConfig, head_dim: int) -> None:
    turned = rope.turned(head_dim)
    if turned + turned % 2 > head_dim or turned < 1:
        reader.fault(f"`head_dim` must be even for rotary embedding, not {head_dim}")
    elif turned % 2 and rope.kind != "default":
        reader.fault(f"rope type {rope.kind} over {turned} dimensions is not supported", "use an even number of them")
    if rope.kind == "longrope" and len(rope.factors) != turned // 2:
        reader.fault(f"`short_factor` must have {turned // 2} numbers, not {len(rope.factors)}")


def _fraction(reader: ConfigReader, given: Mapping[str, Any], family: ModelFamily) -> float:
    value = given.get("partial_rotary_factor", reader.values.get("partial_rotary_factor"))
    if value is None:
        return 1.0
    if not is_number(value) or not 0 < value <= 1:
        reader.fault(f"`partial_rotary_factor` must be a number over 0 and up to 1, not {value!r}")
    elif value != 1 and not family.partial_rotary:
        reader.fault("`partial_rotary_factor` is not supported with this family", "use a checkpoint without it")
    else:
        return float(value)
    return 1.0


def _factors(inner: ConfigReader) -> tuple[float, ...]:
    value = inner.values.get("short_factor")
    if not isinstance(value, list) or not all(is_number(each) and 0 < each <= MOST_NUMBER for each in value):
        inner.fault("`short_factor` must be a list of positive numbers")
        return ()
    return tuple(float(each) for each in value)


def _attention_factor(inner: ConfigReader, kind: str, max_positions: int, original: int) -> float:
    """As the methods' papers have it where the file does not say: YaRN (arXiv 2309.00071), LongRoPE (2402.13753)."""
    if kind not in ("yarn", "longrope"):
        return 1.0
    if inner.values.get("attention_factor") is not None:
        return inner.number("attention_factor", 1.0)
    if kind == "longrope":
        factor = inner.optional_number("factor") or max_positions / original
        return 1.0 if factor <= 1 or original < 2 else math.sqrt(1 + math.log(factor) / math.log(original))
    factor = inner.optional_number("factor")
    scale, all_scale = (_number_or_zero(inner, key) for key in ("mscale", "mscale_all_dim"))
    if scale and all_scale:
        return _yarn_scale(factor, scale) / _yarn_scale(factor, all_scale)
    return _yarn_scale(factor, 1.0)


def _number_or_zero(inner: ConfigReader, key: str) -> float:
    """0 where the file has none, null or 0, which all mean the same in yarn's parameters."""
    value = inner.values.get(key)
    return 0.0 if value is None or (is_number(value) and value == 0) else inner.number(key, 1.0)


def _yarn_scale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
