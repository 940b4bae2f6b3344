"""The shape of a decoder, read from a Hugging Face `config.json`.

Knows no tensor and loads no torch, so the dispatcher and the instance may read it too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dunlin.limits import MOST_EOS_IDS
from dunlin.model.config_reader import ConfigReader, read_json
from dunlin.model.errors import ModelError
from dunlin.model.families import FAMILIES, ModelFamily
from dunlin.model.layer_config import ExpertConfig, LayerConfig, read_experts, read_layers
from dunlin.model.quantization.methods import read_quantization
from dunlin.model.quantization.scheme import Quantization
from dunlin.model.rope_config import RopeConfig, read_ropes

MOST_HEAD_DIM = 512
"""That the attention kernel takes."""
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}
"""Names in files -> names of the functions."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder: sizes in elements, positions in tokens. What has a default is a feature that a model may lack.

    `max_positions`: the longest text that is taken. `norm_offset` is added to the weights of every norm. Scores are
    multiplied by `score_scale` (0: by `head_dim ** -0.5`); caps bound scores and logits by `cap * tanh(x / cap)` (0:
    not). `layer_configs` has one entry for each layer; none: the layers are alike and plain. `quantization`: how the
    checkpoint stores its weights, if not as plain numbers.
    """

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
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    embed_scale: float = 1.0
    activation: str = "silu"
    score_scale: float = 0.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    local_rope: RopeConfig | None = None
    experts: ExpertConfig | None = None
    layer_configs: tuple[LayerConfig, ...] = ()
    # Not in `repr`, which digests take: what is computed depends on the weights, not on how they are stored.
    quantization: Quantization | None = field(default=None, repr=False)

    def slot_bytes(self, item_bytes: int) -> int:
        """Bytes of one token's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_dim * item_bytes

    def layer(self, layer: int) -> LayerConfig:
        """What layer number `layer` has of its own."""
        return self.layer_configs[layer] if self.layer_configs else LayerConfig()


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
        remedy = "give a directory with a Hugging Face checkpoint, or builtin:chat"
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
    faults: list[ModelError] = []
    name = _family(ConfigReader(path, values, faults))
    if name is None:  # the other keys of another architecture mean other things
        return None, faults
    family = FAMILIES[name]
    reader = ConfigReader(path, {**family.defaults, **values}, faults)
    _refuse_unsupported(reader, family)
    config = _read(reader, name, family)
    return (None if faults else config), faults


def _read(reader: ConfigReader, name: str, family: ModelFamily) -> ModelConfig:
    hidden, heads, kv_heads, head_dim = _widths(reader)
    said_positions = reader.positive("max_position_embeddings", 2048)
    vocab, layers = reader.positive("vocab_size"), reader.positive("num_hidden_layers")
    rope, local_rope = read_ropes(reader, family, said_positions, head_dim)
    max_positions = rope.most_positions(said_positions)
    attention_bias = "attention_bias" in family.bias_keys and reader.flag("attention_bias", False)
    return ModelConfig(
        family=name,
        hidden=hidden,
        intermediate=reader.positive("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        max_positions=max_positions,
        norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope=rope,
        tied=reader.flag("tie_word_embeddings", False),
        qkv_bias=family.qkv_bias or attention_bias,
        dtype=_dtype(reader.values),
        eos_ids=_eos_ids(reader, vocab),
        out_bias=attention_bias,
        mlp_bias="mlp_bias" in family.bias_keys and reader.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
        post_norms=family.post_norms,
        norm_offset=family.norm_offset,
        embed_scale=hidden**0.5 if family.scaled_embedding else 1.0,
        activation=_activation(reader, family),
        score_scale=reader.number(family.score_scale_key, 1.0) ** -0.5 if family.score_scale_key else 0.0,
        score_cap=_cap(reader, family, "attn_logit_softcapping"),
        logit_cap=_cap(reader, family, "final_logit_softcapping"),
        local_rope=local_rope,
        experts=read_experts(reader, family),
        layer_configs=read_layers(reader, family, layers, max_positions),
        quantization=read_quantization(reader),
    )


def _widths(reader: ConfigReader) -> tuple[int, int, int, int]:
    """Hidden size, query heads, key-value heads, and the width of a head."""
    known = len(reader.faults)
    heads = reader.positive("num_attention_heads")
    kv_heads = reader.positive("num_key_value_heads", heads)
    hidden = reader.positive("hidden_size")
    sound = len(reader.faults) == known  # how a stand-in divides means nothing
    if sound and heads % kv_heads:
        reader.fault(f"{heads} attention heads do not divide into {kv_heads} key-value heads")
    if sound and reader.values.get("head_dim") is None and hidden % heads:
        reader.fault(f"hidden size {hidden} does not divide into {heads} heads and `head_dim` is missing")
        return hidden, heads, kv_heads, 2  # any that is even: what follows means nothing
    head_dim = reader.positive("head_dim", max(hidden // heads, 1) if sound else 2)
    if head_dim > MOST_HEAD_DIM:
        reader.fault(f"`head_dim` of {head_dim} is not supported", f"dunlin runs heads up to {MOST_HEAD_DIM} wide")
    return hidden, heads, kv_heads, head_dim


def _family(reader: ConfigReader) -> str | None:
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


def _refuse_unsupported(reader: ConfigReader, family: ModelFamily) -> None:
    """Refuse unsupported settings that change the computation: a start that fails is better than a wrong text."""
    values = reader.values
    keys = ("attention_bias", "mlp_bias", "attn_logit_softcapping", "final_logit_softcapping")
    for key in (*keys, "use_bidirectional_attention"):
        is_read = key in family.bias_keys + family.cap_keys or (key == "attention_bias" and family.qkv_bias)
        if values.get(key) and not is_read:
            reader.fault(f"`{key}` is not supported with this family", "use a checkpoint without it")


def _activation(reader: ConfigReader, family: ModelFamily) -> str:
    named = reader.values.get(family.activation_key, "silu")
    if not isinstance(named, str) or named not in ACTIVATIONS:
        reader.fault(f"`{family.activation_key}` {named!r} is not supported", f"dunlin runs {', '.join(ACTIVATIONS)}")
        return "silu"
    return ACTIVATIONS[named]


def _cap(reader: ConfigReader, family: ModelFamily, key: str) -> float:
    return reader.optional_number(key) if key in family.cap_keys else 0.0


def _dtype(values: Mapping[str, Any]) -> str:
    return str(values.get("dtype") or values.get("torch_dtype") or "float32")


def _eos_ids(reader: ConfigReader, vocab: int) -> tuple[int, ...]:
    """The ids that end a text. `generation_config.json` has the say where both files name some."""
    path = reader.path.parent / "generation_config.json"
    try:
        generation = read_json(path) if path.is_file() else {}
    except ModelError as error:
        reader.faults.append(error)
        return ()
    source, named = path, generation.get("eos_token_id")
    if named is None:
        source, named = reader.path, reader.values.get("eos_token_id")
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
