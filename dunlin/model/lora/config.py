"""`adapter_config.json` of a LoRA adapter, as PEFT writes it: which modules are adapted, with which rank and scale.

What changes the computation and is not read here is refused by its key. Knows no tensor.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dunlin.model.config_reader import MOST_NUMBER, ConfigReader, is_number, read_json
from dunlin.model.errors import ModelError

CONFIG_FILE = "adapter_config.json"
ALL_LINEAR = "all-linear"
MOST_RANK = 512
REMEDY = "use a LoRA adapter without it, or merge it into the model (`merge_and_unload` of PEFT)"

_READ = {
    *("peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "rank_pattern"),
    *("alpha_pattern", "layers_to_transform", "layers_pattern", "bias", "init_lora_weights"),
}
_WITHOUT_EFFECT = {
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
    *("lora_dropout", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config"),
    *("megatron_core", "qalora_group_size", "ensure_weight_tying"),
}
"""Of training alone, or settings of options that are refused by keys of their own."""
_PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the model's own weights as they are."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """`targets` and `excluded` are ends of modules' names, or one regular expression; `layers` None: all.

    The patterns have ranks and alphas of modules whose names end with a key, which is a regular expression.
    """

    rank: int
    alpha: float
    rslora: bool
    targets: tuple[str, ...] | str
    excluded: tuple[str, ...] | str = ()
    layers: tuple[int, ...] | None = None
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)

    def selects(self, module: str, layer: int) -> bool:
        """Whether the module of that name, in that layer, is adapted."""
        if _matches(self.excluded, module):
            return False
        if self.targets == ALL_LINEAR:
            return True
        return _matches(self.targets, module) and (self.layers is None or layer in self.layers)

    def rank_of(self, module: str) -> int:
        """The rank of the module's matrices."""
        return self.rank_pattern.get(_key(self.rank_pattern, module), self.rank)

    def scale_of(self, module: str) -> float:
        """What the product of the module's matrices is multiplied by."""
        alpha, rank = self.alpha_pattern.get(_key(self.alpha_pattern, module), self.alpha), self.rank_of(module)
        return alpha / rank**0.5 if self.rslora else alpha / rank


def _matches(wanted: tuple[str, ...] | str, module: str) -> bool:
    if isinstance(wanted, str):
        return re.fullmatch(wanted, module) is not None
    return any(module == one or module.endswith(f".{one}") for one in wanted)


def _key(pattern: Mapping[str, Any], module: str) -> str:
    return next((key for key in pattern if re.match(rf"(.*\.)?({key})$", module)), module)


def is_adapter(directory: Path) -> bool:
    """Whether the directory holds an adapter, and no model."""
    return (directory / CONFIG_FILE).is_file() and not (directory / "config.json").is_file()


def read_lora_config(directory: Path) -> tuple[LoraConfig | None, list[ModelError]]:
    """The configuration of the adapter in `directory`, only where nothing is wrong with it, and all that is."""
    path = directory / CONFIG_FILE
    try:
        reader = ConfigReader(path, read_json(path), [])
    except ModelError as error:
        return None, [ModelError(error.path, error.what, "give a directory with a LoRA adapter, as PEFT writes it")]
    kind = reader.values.get("peft_type")
    if kind != "LORA":  # the other keys of another method mean other things
        reader.fault(f"`peft_type` {kind!r} is not supported", "dunlin serves adapters of type LORA")
        return None, reader.faults
    _refuse_unsupported(reader)
    config = _read(reader)
    return (None if reader.faults else config), reader.faults


def _refuse_unsupported(reader: ConfigReader) -> None:
    values = reader.values
    for key in sorted(values.keys() - _READ - _WITHOUT_EFFECT):
        if values[key]:
            reader.fault(f"`{key}` is not supported", REMEDY)
    if values.get("bias", "none") != "none":
        reader.fault(f"`bias` {values['bias']!r} is not supported", REMEDY)
    start = values.get("init_lora_weights")
    if not any(start is one or (isinstance(one, str) and start == one) for one in _PLAIN_STARTS):
        remedy = "convert it to a plain LoRA adapter (`path_initial_model_for_weight_conversion` of PEFT)"
        reader.fault(f"`init_lora_weights` {start!r} is not supported: it changes the model's own weights", remedy)
    pattern = values.get("layers_pattern")
    if pattern and pattern not in ("layers", ["layers"]):
        reader.fault(f"`layers_pattern` {pattern!r} is not supported", "the layers are in `layers`")


def _read(reader: ConfigReader) -> LoraConfig:
    return LoraConfig(
        rank=reader.positive("r", 8),
        alpha=reader.number("lora_alpha", 8.0),
        rslora=reader.flag("use_rslora", False),
        targets=_names(reader, "target_modules", required=True),
        excluded=_names(reader, "exclude_modules"),
        layers=_layers(reader),
        rank_pattern=_pattern(reader, "rank_pattern"),
        alpha_pattern=_pattern(reader, "alpha_pattern"),
    )


def _names(reader: ConfigReader, key: str, *, required: bool = False) -> tuple[str, ...] | str:
    value = reader.values.get(key)
    if isinstance(value, str) and value:
        if value != ALL_LINEAR and not _is_pattern(value):
            reader.fault(f"`{key}` {value!r} is no regular expression")
            return ()
        return value
    if isinstance(value, Sequence) and all(isinstance(one, str) for one in value) and (value or not required):
        return tuple(value)
    if value is not None or required:
        reader.fault(f"`{key}` must be names of modules or a regular expression, not {value!r}")
    return ()


def _layers(reader: ConfigReader) -> tuple[int, ...] | None:
    value = reader.values.get("layers_to_transform")
    listed = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in listed):
        reader.fault(f"`layers_to_transform` must be numbers of layers, not {value!r}")
        return None
    return tuple(listed) or None


def _pattern(reader: ConfigReader, key: str) -> dict[str, Any]:
    value = reader.values.get(key) or {}
    whole = key == "rank_pattern"
    if not isinstance(value, dict) or not all(
        _is_pattern(name) and is_number(one) and 0 < one <= MOST_NUMBER and (isinstance(one, int) or not whole)
        for name, one in value.items()
    ):
        reader.fault(f"`{key}` must be an object of modules and positive numbers, not {value!r}")
        return {}
    return value


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
