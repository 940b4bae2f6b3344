"""The model families that dunlin runs. A family is one row: what its `config.json` does not say.

`defaults` are the values of keys that a file leaves out, as in the configuration classes of transformers 5; null in a
file is no default. Knows no tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"
"""What `layer_types` may hold."""
ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


class Windows(Enum):
    """Which layers a family's `sliding_window` is for."""

    NONE = "none"
    ALL = "all"
    BY_LAYER = "by layer"
    """`layer_types` names them; without it a pattern does."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names of a layer's tensors, below `model.layers.N.` and without `.weight` or `.bias`. One name for several
    products: the checkpoint has them stacked.
    """

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    expert: str = "mlp.experts.{}."
    expert_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Properties of a model family that its `config.json` does not say."""

    architecture: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: TensorNames = TensorNames()
    qkv_bias: bool = False
    bias_keys: tuple[str, ...] = ()
    """Of `attention_bias` and `mlp_bias`, those that its `config.json` may set."""
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    """What is added to the weights of a norm."""
    scaled_embedding: bool = False
    activation_key: str = "hidden_act"
    score_scale_key: str = ""
    """Names a number whose root divides the scores; else it is the width of a head."""
    cap_keys: tuple[str, ...] = ()
    """Of `attn_logit_softcapping` and `final_logit_softcapping`, those that its `config.json` may set."""
    windows: Windows = Windows.NONE
    rope_kinds: tuple[str, ...] = ROPE_KINDS
    rope_aliases: Mapping[str, str] = field(default_factory=dict)
    partial_rotary: bool = False
    local_rope: bool = False
    """Layers with a window turn by a base of their own."""
    experts_keys: tuple[str, ...] = ()
    """Either names how many experts a layer has; none: it has no experts."""
    expert_width_key: str = "intermediate_size"
    renormalise_key: str = ""
    """Says whether the shares of the experts chosen are to sum up to 1; "": they are."""


_QWEN = {
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}

FAMILIES: Mapping[str, ModelFamily] = {
    "llama": ModelFamily("LlamaForCausalLM", bias_keys=("attention_bias", "mlp_bias")),
    "mistral": ModelFamily(
        "MistralForCausalLM",
        {"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        windows=Windows.ALL,
    ),
    "qwen2": ModelFamily("Qwen2ForCausalLM", _QWEN, qkv_bias=True, windows=Windows.BY_LAYER),
    "qwen3": ModelFamily(
        "Qwen3ForCausalLM",
        {**_QWEN, "head_dim": 128},
        bias_keys=("attention_bias",),
        qk_norm=True,
        windows=Windows.BY_LAYER,
    ),
    "phi3": ModelFamily(
        "Phi3ForCausalLM",
        {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
        TensorNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
        windows=Windows.ALL,
        rope_kinds=("default", "longrope"),
        rope_aliases={"su": "longrope", "yarn": "longrope"},
        partial_rotary=True,
    ),
    "gemma2": ModelFamily(
        "Gemma2ForCausalLM",
        {
            **_GEMMA,
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        bias_keys=("attention_bias",),
        post_norms=True,
        norm_offset=1.0,
        scaled_embedding=True,
        activation_key="hidden_activation",
        score_scale_key="query_pre_attn_scalar",
        cap_keys=("attn_logit_softcapping", "final_logit_softcapping"),
        windows=Windows.BY_LAYER,
    ),
    "gemma3_text": ModelFamily(
        "Gemma3ForCausalLM",
        {
            **_GEMMA,
            "max_position_embeddings": 131072,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "sliding_window_pattern": 6,
        },
        bias_keys=("attention_bias",),
        qk_norm=True,
        post_norms=True,
        norm_offset=1.0,
        scaled_embedding=True,
        activation_key="hidden_activation",
        score_scale_key="query_pre_attn_scalar",
        cap_keys=("final_logit_softcapping",),
        windows=Windows.BY_LAYER,
        rope_kinds=("default", "linear"),
        local_rope=True,
    ),
    "mixtral": ModelFamily(
        "MixtralForCausalLM",
        {
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0,
            "num_experts_per_tok": 2,
        },
        TensorNames(
            router="block_sparse_moe.gate",
            expert="block_sparse_moe.experts.{}.",
            expert_gate_up=("w1", "w3"),
            expert_down="w2",
        ),
        windows=Windows.ALL,
        experts_keys=("num_local_experts", "num_experts"),
    ),
    "qwen3_moe": ModelFamily(
        "Qwen3MoeForCausalLM",
        {
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 768,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
        bias_keys=("attention_bias",),
        qk_norm=True,
        windows=Windows.ALL,
        experts_keys=("num_experts", "num_local_experts"),
        expert_width_key="moe_intermediate_size",
        renormalise_key="norm_topk_prob",
    ),
}
