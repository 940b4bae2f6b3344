"""What a model has besides Llama's plain shape, in words: for `dunlin model show` and docs/models.md."""

from collections.abc import Iterator

from dunlin.model.config import ModelConfig
from dunlin.model.families import FAMILIES, ROPE_KINDS, ModelFamily, Windows
from dunlin.model.quantization.methods import METHODS, REFUSED


def features_of(config: ModelConfig) -> list[str]:
    """The features of one model."""
    return [*_attention(config), *_rope(config), *_rest(config)]


def _attention(config: ModelConfig) -> Iterator[str]:
    if config.qk_norm:
        yield "q/k norm"
    windows = [config.layer(layer).window for layer in range(config.layers) if config.layer_configs]
    if any(windows):
        yield f"window of {max(windows)} tokens in {sum(map(bool, windows))} of {config.layers} layers"
    biases = {"qkv": config.qkv_bias, "output": config.out_bias, "MLP": config.mlp_bias}
    if any(biases.values()):
        yield f"bias of {', '.join(name for name, there in biases.items() if there)}"
    if config.score_cap or config.logit_cap:
        yield f"caps of scores {config.score_cap or 'none'} and logits {config.logit_cap or 'none'}"


def _rope(config: ModelConfig) -> Iterator[str]:
    if config.rope.kind != "default":
        yield f"rope {config.rope.kind}"
    if config.rope.fraction != 1.0:
        yield f"rotary over {config.rope.turned(config.head_dim)} of {config.head_dim} dimensions"
    if config.local_rope is not None:
        yield f"rope base {config.local_rope.theta:g} in layers with a window, else {config.rope.theta:g}"


def _rest(config: ModelConfig) -> Iterator[str]:
    if config.post_norms:
        yield "norms after attention and MLP"
    if config.activation != "silu":
        yield f"activation {config.activation}"
    if config.experts is not None:
        yield f"{config.experts.count} experts, {config.experts.active} a token"
    if config.tied:
        yield "tied embedding"


def family_rows() -> list[tuple[str, ...]]:
    """For every family: `model_type`, architecture, what it has, which options it may have, and its kinds of rope."""
    return [(f"`{name}`", family.architecture, *_columns(family)) for name, family in FAMILIES.items()]


def quantization_rows() -> list[tuple[str, str, str]]:
    """For every `quant_method` that is read: its name, what of it is read, and what is not."""
    return [(f"`{name}`", method.reads, method.refuses) for name, method in METHODS.items()]


def refused_rows() -> list[tuple[str, str]]:
    """For every `quant_method` that is refused by name: its name and why."""
    return [(f"`{name}`", why) for name, why in REFUSED.items()]


def _columns(family: ModelFamily) -> tuple[str, str, str]:
    has = {
        "qkv bias": family.qkv_bias,
        "q/k norm": family.qk_norm,
        "fused qkv and gate-up tensors": len(family.names.qkv) == 1,
        "norms after attention and MLP": family.post_norms,
        "norms of 1 + w": bool(family.norm_offset),
        "scaled embedding": family.scaled_embedding,
        "experts": bool(family.experts_keys),
    }
    may_have = {
        **{f"`{key}`": True for key in (*family.bias_keys, *family.cap_keys)},
        f"`{family.score_scale_key}`": bool(family.score_scale_key),
        "`sliding_window` of all layers": family.windows is Windows.ALL,
        "`sliding_window` by layer": family.windows is Windows.BY_LAYER,
        "`rope_local_base_freq`": family.local_rope,
        "`partial_rotary_factor`": family.partial_rotary,
        f"`{family.renormalise_key}`": bool(family.renormalise_key),
    }
    return _named(has), _named(may_have), "all" if family.rope_kinds == ROPE_KINDS else ", ".join(family.rope_kinds)


def _named(flags: dict[str, bool]) -> str:
    return ", ".join(name for name, there in flags.items() if there) or "–"
