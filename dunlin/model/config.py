"""The shape of a decoder, read from a Hugging Face `config.json`.

Knows no tensor and loads no torch, so the dispatcher and the instance may read it too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dunlin.limits import MOST_EOS_IDS
from dunlin.model.errors import ModelError


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Properties of a model family that its `config.json` does not say."""

    architecture: str
    qkv_bias: bool


FAMILIES = {
    "llama": ModelFamily("LlamaForCausalLM", qkv_bias=False),
    "mistral": ModelFamily("MistralForCausalLM", qkv_bias=False),
    "qwen2": ModelFamily("Qwen2ForCausalLM", qkv_bias=True),
}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. `kind` is `default`, `linear` or `llama3`; the factors matter to the kinds that use them."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


ROPE_KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder: sizes in elements, positions in tokens."""

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    norm_eps: float
    rope: RopeConfig
    tied: bool
    qkv_bias: bool
    dtype: str
    eos_ids: tuple[int, ...]

    def slot_bytes(self, item_bytes: int) -> int:
        """Bytes of one token's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_dim * item_bytes


class _Reader:
    """Typed access to one JSON object. What is wrong is added to `faults`, each naming the file and the key, and a
    harmless value stands in for it.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], faults: list[ModelError]) -> None:
        self.path = path
        self.values = values
        self.faults = faults

    def fault(self, what: str, remedy: str = "check the file or use another checkpoint") -> None:
        self.faults.append(ModelError(self.path, what, remedy))

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            self.fault(f"`{key}` is missing")
        elif isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            self.fault(f"`{key}` must be a positive integer, not {value!r}")
        else:
            return value
        return 1

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            self.fault(f"`{key}` must be a positive number, not {value!r}")
            return default
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            self.fault(f"`{key}` must be true or false, not {value!r}")
            return default
        return value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`.

    :raises ModelError: the file is missing, unreadable, not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(path, "no such file", "give a directory with a Hugging Face checkpoint") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ModelError(path, f"cannot be read as JSON ({error})", "fetch or write the file again") from None
    if not isinstance(value, dict):
        raise ModelError(path, "holds no JSON object", "fetch or write the file again")
    return value


def load_config(directory: Path) -> ModelConfig:
    """The configuration of the checkpoint in `directory`.

    :raises ModelError: no such directory, a broken or incomplete file, or a model that dunlin does not run.
    """
    config, faults = check_config(directory)
    if config is None or faults:
        raise faults[0]
    return config


def check_config(directory: Path) -> tuple[ModelConfig | None, list[ModelError]]:
    """Like `load_config`, with all that is wrong; the configuration only where nothing is."""
    if not directory.is_dir():
        remedy = "give a directory with a Hugging Face checkpoint, or builtin:tiny"
        return None, [ModelError(directory, "no such directory", remedy)]
    path = directory / "config.json"
    try:
        values = read_json(path)
    except ModelError as error:
        return None, [error]
    return _examine(values, path)


def parse_config(values: Mapping[str, Any], path: Path) -> ModelConfig:
    """Like `load_config`, from the object itself; `path` is for errors and for `generation_config.json` beside it."""
    config, faults = _examine(values, path)
    if config is None:
        raise faults[0]
    return config


def _examine(values: Mapping[str, Any], path: Path) -> tuple[ModelConfig | None, list[ModelError]]:
    reader = _Reader(path, values, [])
    family = _family(reader)
    if family is None:  # the other keys of another architecture mean other things
        return None, reader.faults
    _refuse_unsupported(reader)
    hidden, heads, kv_heads, head_dim = _widths(reader)
    max_positions = reader.positive("max_position_embeddings", 2048)
    vocab = reader.positive("vocab_size")
    config = ModelConfig(
        family=family,
        hidden=hidden,
        intermediate=reader.positive("intermediate_size"),
        layers=reader.positive("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        max_positions=max_positions,
        norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope=_rope(reader, max_positions),
        tied=reader.flag("tie_word_embeddings", False),
        qkv_bias=FAMILIES[family].qkv_bias,
        dtype=_dtype(values),
        eos_ids=_eos_ids(reader, vocab),
    )
    return (None if reader.faults else config), reader.faults


def _widths(reader: _Reader) -> tuple[int, int, int, int]:
    """Hidden size, query heads, key-value heads, and the width of a head."""
    known = len(reader.faults)
    heads = reader.positive("num_attention_heads")
    kv_heads = reader.positive("num_key_value_heads", heads)
    hidden = reader.positive("hidden_size")
    sound = len(reader.faults) == known  # how a stand-in divides means nothing
    if sound and heads % kv_heads:
        reader.fault(f"{heads} attention heads do not divide into {kv_heads} key-value heads")
    if sound and "head_dim" not in reader.values and hidden % heads:
        reader.fault(f"hidden size {hidden} does not divide into {heads} heads and `head_dim` is missing")
        sound = False
    head_dim = reader.positive("head_dim", max(hidden // heads, 1))
    if sound and head_dim % 2:
        reader.fault(f"`head_dim` must be even for rotary embedding, not {head_dim}")
    return hidden, heads, kv_heads, head_dim


def _family(reader: _Reader) -> str | None:
    named = reader.values.get("model_type")
    architectures = reader.values.get("architectures") or []
    if not isinstance(architectures, list):
        reader.fault(f"`architectures` must be a list, not {architectures!r}")
        return None
    known = FAMILIES.get(named) if isinstance(named, str) else None
    if known is None or (architectures and known.architecture not in architectures):
        supported = ", ".join(family.architecture for family in FAMILIES.values())
        label = ", ".join(map(str, architectures)) or f"model_type {named!r}"
        reader.fault(f"architecture {label} is not supported", f"dunlin runs {supported}")
        return None
    return str(named)


def _refuse_unsupported(reader: _Reader) -> None:
    """Refuse unsupported settings that change the computation: a start that fails is better than a wrong text."""
    values = reader.values
    if values.get("hidden_act", "silu") != "silu":
        reader.fault(f"`hidden_act` {values['hidden_act']!r} is not supported", "dunlin runs silu")
    if values.get("quantization_config") is not None:
        reader.fault("quantised weights are not supported", "use the unquantised checkpoint")
    for key in ("attention_bias", "mlp_bias"):
        if values.get(key):
            reader.fault(f"`{key}` is not supported", "use a checkpoint without it")
    if values.get("sliding_window") is not None and reader.flag("use_sliding_window", True):
        known = len(reader.faults)
        window = reader.positive("sliding_window")
        if len(reader.faults) == known and window < reader.positive("max_position_embeddings", 2048):
            remedy = "set max_position_embeddings to at most the window"
            reader.fault(f"a sliding window of {window} tokens is not supported", remedy)


def _rope(reader: _Reader, max_positions: int) -> RopeConfig:
    given = reader.values.get("rope_parameters") or reader.values.get("rope_scaling") or {}
    if not isinstance(given, dict):
        reader.fault("the rope parameters are not an object")
        given = {}
    scaling = _Reader(reader.path, given, reader.faults)
    kind = given.get("rope_type", given.get("type", "default"))
    if not isinstance(kind, str) or kind not in ROPE_KINDS:
        reader.fault(f"rope type {kind!r} is not supported", f"dunlin runs {', '.join(ROPE_KINDS)}")
        return RopeConfig()
    return RopeConfig(
        theta=scaling.number("rope_theta", reader.number("rope_theta", 10_000.0)),
        kind=kind,
        factor=scaling.number("factor", 1.0),
        low_freq_factor=scaling.number("low_freq_factor", 1.0),
        high_freq_factor=scaling.number("high_freq_factor", 4.0),
        original_max_positions=scaling.positive("original_max_position_embeddings", max_positions),
    )


def _dtype(values: Mapping[str, Any]) -> str:
    return str(values.get("dtype") or values.get("torch_dtype") or "float32")


def _eos_ids(reader: _Reader, vocab: int) -> tuple[int, ...]:
    """The ids that end a text. `generation_config.json` has the say where both files name some."""
    path = reader.path.parent / "generation_config.json"
    try:
        generation = read_json(path) if path.is_file() else {}
    except ModelError as error:
        reader.faults.append(error)
        return ()
    source = path if "eos_token_id" in generation else reader.path
    named = generation.get("eos_token_id", reader.values.get("eos_token_id"))
    ids = named if isinstance(named, list) else [] if named is None else [named]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        reader.faults.append(ModelError(source, f"`eos_token_id` must be token ids, not {named!r}", "correct the file"))
        return ()
    beyond = [i for i in ids if i >= vocab]
    if beyond and "vocab_size" in reader.values:
        what = f"`eos_token_id` {beyond[0]} is outside the vocabulary of {vocab}: no text would end with it"
        reader.faults.append(ModelError(source, what, "correct the file"))
    if len(ids) > MOST_EOS_IDS:
        what = f"{len(ids)} tokens end a text; at most {MOST_EOS_IDS} are taken"
        reader.faults.append(ModelError(source, what, "shorten `eos_token_id`"))
    return tuple(ids)
