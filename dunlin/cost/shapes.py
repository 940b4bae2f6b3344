"""Model shapes: the sizes that decide how much a step computes and how much memory a token needs.

Any decoder with grouped-query attention and a gated feed-forward by name or from its `config.json`; what a window saves
is not counted, nor what norms of queries and keys cost. Knows no device and no time.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dunlin.model.families import FAMILIES


class ShapeError(ValueError):
    """No such shape; the message says what was given and what is known."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder. `dtype_bytes` of a weight and of a KV element alike."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    head_dim: int = 128
    dtype_bytes: int = 2
    tied_embedding: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "head_dim", "dtype_bytes"):
            size = getattr(self, name)
            if not isinstance(size, int) or size < 1:
                raise ShapeError(f"{self.name}: {name} is {size!r}, no whole number from 1 on")
        if self.heads % self.kv_heads:
            raise ShapeError(f"{self.name}: {self.heads} heads cannot share {self.kv_heads} kv heads evenly")

    def weights_bytes(self) -> int:
        """Bytes of all parameters but the norms."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        embedding = self.vocabulary * self.hidden * (1 if self.tied_embedding else 2)
        return self.dtype_bytes * (self.layers * (attention + 3 * self.hidden * self.ffn) + embedding)

    def kv_bytes_per_token(self, tp: int = 1) -> int:
        """KV bytes of a token over all layers and GPUs; with more GPUs than `kv_heads` some heads are held twice."""
        return 2 * self.layers * max(self.kv_heads, tp) * self.head_dim * self.dtype_bytes

    def check_tp(self, tp: int) -> None:
        """Raises ShapeError where the heads or the feed-forward cannot be split over `tp` GPUs."""
        if tp < 1 or self.heads % tp or self.ffn % tp or max(self.kv_heads, tp) % min(self.kv_heads, tp):
            raise ShapeError(
                f"{self.name} cannot run on {tp} GPUs with tensor parallelism: {self.heads} heads, "
                f"{self.kv_heads} kv heads and a feed-forward of {self.ffn} do not divide evenly"
            )


def _shape(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocabulary: int, head_dim: int = 128
) -> ModelShape:
    return ModelShape(name, layers, hidden, heads, kv_heads, ffn, vocabulary, head_dim)


_KNOWN = (
    _shape("llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
    _shape("llama-2-13b", 40, 5120, 40, 40, 13824, 32000),
    _shape("llama-2-70b", 80, 8192, 64, 8, 28672, 32000),
    _shape("llama-3-8b", 32, 4096, 32, 8, 14336, 128256),
    _shape("llama-3-70b", 80, 8192, 64, 8, 28672, 128256),
    _shape("lwm-text-1m-7b", 32, 4096, 32, 32, 11008, 32000),
    _shape("codellama-34b", 48, 8192, 64, 8, 22016, 32000),
    _shape("mistral-7b", 32, 4096, 32, 8, 14336, 32000),
    # Phi-3: `transformers.Phi3Config()` is the small one's; the medium one's by its published configuration
    # (apxml.com/models/phi-3-medium; Phi-4 has the same but for its vocabulary).
    _shape("phi-3-mini", 32, 3072, 32, 32, 8192, 32064, 96),
    _shape("phi-3-medium", 40, 5120, 40, 10, 17920, 32064),
    _shape("yi-34b", 60, 7168, 56, 8, 20480, 64000),
    _shape("internlm-20b", 60, 5120, 40, 40, 13824, 103168),
    _shape("qwen-72b", 80, 8192, 64, 64, 24576, 152064),
    _shape("qwen-2.5-7b", 28, 3584, 28, 4, 18944, 152064),
    _shape("qwen-2.5-14b", 48, 5120, 40, 8, 13824, 152064),
    _shape("qwen-2.5-32b", 64, 5120, 40, 8, 27648, 152064),
    _shape("qwen-2.5-72b", 80, 8192, 64, 8, 29568, 152064),
    _shape("qwen-3-8b", 36, 4096, 32, 8, 12288, 151936),
    _shape("qwen-3-32b", 64, 5120, 64, 8, 25600, 151936),
)
SHAPES: Mapping[str, ModelShape] = {shape.name: shape for shape in _KNOWN}


def find_shape(name: str) -> ModelShape:
    """A known shape by name, or the shape of a model's directory or `config.json`. Raises ShapeError."""
    if name.lower() in SHAPES:
        return SHAPES[name.lower()]
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ShapeError(f"no shape is called {name!r}, and no config.json lies there; known: {', '.join(SHAPES)}")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ShapeError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ShapeError(f"{path} is no configuration of a model: an object must stand there")
    return shape_of(config, path.parent.name or str(path))


def shape_of(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape in a Hugging Face configuration. Raises ShapeError on what is missing or no such model."""
    needed = (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size",
    )  # fmt: skip
    family = FAMILIES.get(str(config.get("model_type")))
    config = {**(family.defaults if family else {}), **config}
    missing = [key for key in needed if not isinstance(config.get(key), int)]
    if missing:
        raise ShapeError(f"{name}: the configuration lacks {', '.join(missing)}")
    if config.get("num_experts") or config.get("num_local_experts"):
        raise ShapeError(f"{name}: mixtures of experts have no cost model: measure the engine with `dunlin profile`")
    layers, hidden, heads, ffn, vocabulary = (config[key] for key in needed)
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        ffn=ffn,
        vocabulary=vocabulary,
        head_dim=config.get("head_dim") or hidden // max(1, heads),
        dtype_bytes=4 if config.get("torch_dtype", config.get("dtype")) == "float32" else 2,
        tied_embedding=bool(config.get("tie_word_embeddings", False)),
    )
