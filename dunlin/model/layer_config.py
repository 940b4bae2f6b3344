"""What may differ from layer to layer, read from a `config.json`: windows, and which layers have experts."""

from dataclasses import dataclass

from dunlin.model.config_reader import ConfigReader
from dunlin.model.families import FULL, SLIDING, ModelFamily, Windows

MOST_LAYERS = 1000
"""Each is looked at one by one before any weights are: a file that lies must not keep a start busy for days."""


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """A query sees the last `window` positions, its own included (0: all). `is_local`: turns by the model's
    `local_rope`. `has_experts`: the feed-forward is one of experts.
    """

    window: int = 0
    is_local: bool = False
    has_experts: bool = False


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """A layer's `count` experts, each `width` elements wide, of which a token goes through `active`; `renormalise`:
    their shares sum up to 1.
    """

    count: int
    active: int
    width: int
    renormalise: bool


def read_experts(reader: ConfigReader, family: ModelFamily) -> ExpertConfig | None:
    """The experts of a model's layers; None: it has none."""
    if not family.experts_keys:
        return None
    known = len(reader.faults)
    key = next((key for key in family.experts_keys if key in reader.values), family.experts_keys[0])
    experts = ExpertConfig(
        count=reader.positive(key),
        active=reader.positive("num_experts_per_tok"),
        width=reader.positive(family.expert_width_key),
        renormalise=not family.renormalise_key or reader.flag(family.renormalise_key, False),
    )
    if len(reader.faults) == known and experts.active > experts.count:
        reader.fault(f"`num_experts_per_tok` is {experts.active}, of {experts.count} experts")
    return experts


def read_layers(reader: ConfigReader, family: ModelFamily, layers: int, max_positions: int) -> tuple[LayerConfig, ...]:
    """Layer by layer; none where all are plain."""
    window = _window(reader, family, max_positions)
    if family.windows is not Windows.BY_LAYER:
        _refuse_layer_types(reader, window)
    if layers > MOST_LAYERS:
        reader.fault(f"`num_hidden_layers` of {layers} is not supported", f"dunlin runs up to {MOST_LAYERS}")
        return ()
    if family.windows is Windows.NONE and not family.experts_keys:
        return ()
    sliding = _sliding(reader, family, layers)
    sparse = _sparse(reader, layers) if family.experts_keys else [False] * layers
    configs = tuple(
        LayerConfig(window if slides else 0, family.local_rope and slides, experts)
        for slides, experts in zip(sliding, sparse, strict=True)
    )
    return configs if set(configs) != {LayerConfig()} else ()


def _refuse_layer_types(reader: ConfigReader, window: int) -> None:
    """A family whose layers are alike cannot have some with a window and some without."""
    named = reader.values.get("layer_types")
    kinds = set(map(str, named)) if isinstance(named, list) else set()
    if len(kinds) > 1 or (window and kinds and kinds != {SLIDING}):
        reader.fault(f"`layer_types` of {', '.join(sorted(kinds))} is not supported with this family and window")


def _window(reader: ConfigReader, family: ModelFamily, max_positions: int) -> int:
    """0: there is none, or it is as long as the model's longest text."""
    switch = "use_sliding_window"
    is_on = reader.flag(switch, True) if switch in family.defaults or family.windows is Windows.NONE else True
    if reader.values.get("sliding_window") is None or not is_on:
        return 0
    known = len(reader.faults)
    window = reader.positive("sliding_window")
    if len(reader.faults) > known or window >= max_positions:
        return 0
    if family.windows is Windows.NONE:
        remedy = "set max_position_embeddings to at most the window"
        reader.fault(f"a sliding window of {window} tokens is not supported with this family", remedy)
    return window


def _sliding(reader: ConfigReader, family: ModelFamily, layers: int) -> list[bool]:
    """Which layers have the window."""
    named = reader.values.get("layer_types")
    if family.windows is not Windows.BY_LAYER:
        return [family.windows is Windows.ALL] * layers
    if named is None:
        return _patterned(reader, family, layers)
    if not isinstance(named, list) or len(named) != layers or not set(map(str, named)) <= {SLIDING, FULL}:
        reader.fault(f"`layer_types` must be {layers} of {SLIDING} and {FULL}")
        return [False] * layers
    return [each == SLIDING for each in named]


def _patterned(reader: ConfigReader, family: ModelFamily, layers: int) -> list[bool]:
    if "max_window_layers" in family.defaults:
        first = reader.values["max_window_layers"]
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            reader.fault(f"`max_window_layers` must be an integer of at least 0, not {first!r}")
            first = 0
        return [layer >= first for layer in range(layers)]
    key = "sliding_window_pattern"
    every = reader.positive(key, 2) if key in family.defaults else 2
    return [(layer + 1) % every != 0 for layer in range(layers)]


def _sparse(reader: ConfigReader, layers: int) -> list[bool]:
    """Which layers have experts: every `decoder_sparse_step`-th but for those that are named plain."""
    step = reader.positive("decoder_sparse_step", 1)
    plain = reader.values.get("mlp_only_layers") or []
    if not isinstance(plain, list):
        reader.fault("`mlp_only_layers` must be a list of layers")
        plain = []
    return [layer not in plain and (layer + 1) % step == 0 for layer in range(layers)]
