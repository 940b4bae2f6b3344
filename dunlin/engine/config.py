"""The shape of a decoder, read from a Hugging Face `config.json`.

Knows no tensor and loads no torch, so the dispatcher and the instance may read it too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dunlin.engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class Family:
    """What a model family fixes that its `config.json` does not say."""

    architecture: str
    qkv_bias: bool


FAMILIES = {
    "llama": Family("LlamaForCausalLM", qkv_bias=False),
    "mistral": Family("MistralForCausalLM", qkv_bias=False),
    "qwen2": Family("Qwen2ForCausalLM", qkv_bias=True),
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
    """Typed access to one JSON object; every complaint names the file and the key."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    def fail(self, what: str, remedy: str = "check the file or use another checkpoint") -> ModelError:
        return ModelError(self.path, what, remedy)

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise self.fail(f"`{key}` is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.fail(f"`{key}` must be a positive integer, not {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.fail(f"`{key}` must be a positive number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.fail(f"`{key}` must be true or false, not {value!r}")
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
    if not directory.is_dir():
        raise ModelError(
            directory, "no such directory", "give a directory with a Hugging Face checkpoint, or builtin:tiny"
        )
    path = directory / "config.json"
    config = parse_config(read_json(path), path)
    return config


def parse_config(values: Mapping[str, Any], path: Path) -> ModelConfig:
    """Like `load_config`, from the object itself; `path` is for errors and for `generation_config.json` beside it."""
    reader = _Reader(path, values)
    family = _family(reader)
    _refuse_unsupported(reader)
    heads = reader.positive("num_attention_heads")
    kv_heads = reader.positive("num_key_value_heads", heads)
    hidden = reader.positive("hidden_size")
    if heads % kv_heads:
        raise reader.fail(f"{heads} attention heads do not divide into {kv_heads} key-value heads")
    if "head_dim" not in values and hidden % heads:
        raise reader.fail(f"hidden size {hidden} does not divide into {heads} heads and `head_dim` is missing")
    head_dim = reader.positive("head_dim", max(hidden // heads, 1))
    if head_dim % 2:
        raise reader.fail(f"`head_dim` must be even for rotary embedding, not {head_dim}")
    max_positions = reader.positive("max_position_embeddings", 2048)
    return ModelConfig(
        family=family,
        hidden=hidden,
        intermediate=reader.positive("intermediate_size"),
        layers=reader.positive("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=reader.positive("vocab_size"),
        max_positions=max_positions,
        norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope=_rope(reader, max_positions),
        tied=reader.flag("tie_word_embeddings", False),
        qkv_bias=FAMILIES[family].qkv_bias,
        dtype=_dtype(values),
        eos_ids=_eos_ids(path.parent, values),
    )


def _family(reader: _Reader) -> str:
    named = reader.values.get("model_type")
    architectures = reader.values.get("architectures") or []
    if not isinstance(architectures, list):
        raise reader.fail(f"`architectures` must be a list, not {architectures!r}")
    supported = ", ".join(family.architecture for family in FAMILIES.values())
    known = FAMILIES.get(named) if isinstance(named, str) else None
    if known is None or (architectures and known.architecture not in architectures):
        label = ", ".join(map(str, architectures)) or f"model_type {named!r}"
        raise reader.fail(f"architecture {label} is not supported", f"dunlin runs {supported}")
    return str(named)


def _refuse_unsupported(reader: _Reader) -> None:
    """What would change the computation and is not done here must stop the start, not bend the text."""
    values = reader.values
    if values.get("hidden_act", "silu") != "silu":
        raise reader.fail(f"`hidden_act` {values['hidden_act']!r} is not supported", "dunlin runs silu")
    if values.get("quantization_config") is not None:
        raise reader.fail("quantised weights are not supported", "use the unquantised checkpoint")
    for key in ("attention_bias", "mlp_bias"):
        if values.get(key):
            raise reader.fail(f"`{key}` is not supported", "use a checkpoint without it")
    if values.get("sliding_window") is not None and reader.flag("use_sliding_window", True):
        window = reader.positive("sliding_window")
        if window < reader.positive("max_position_embeddings", 2048):
            remedy = "set max_position_embeddings to at most the window"
            raise reader.fail(f"a sliding window of {window} tokens is not supported", remedy)


def _rope(reader: _Reader, max_positions: int) -> RopeConfig:
    given = reader.values.get("rope_parameters") or reader.values.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise reader.fail("the rope parameters are not an object")
    scaling = _Reader(reader.path, given)
    kind = given.get("rope_type", given.get("type", "default"))
    if not isinstance(kind, str) or kind not in ROPE_KINDS:
        raise reader.fail(f"rope type {kind!r} is not supported", f"dunlin runs {', '.join(ROPE_KINDS)}")
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


def _eos_ids(directory: Path, values: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that end a text. `generation_config.json` has the say where both files name some."""
    path = directory / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    named = generation.get("eos_token_id", values.get("eos_token_id"))
    ids = named if isinstance(named, list) else [] if named is None else [named]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ModelError(path, f"`eos_token_id` must be token ids, not {named!r}", "correct the file")
    return tuple(ids)
