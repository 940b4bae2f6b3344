"""Small models of every family with every option, pairwise: what is compared with `transformers`."""

from typing import Any

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _longrope(kind: str, frequencies: int, **more: Any) -> dict[str, Any]:
    short = [1.0 + 0.3 * at for at in range(frequencies)]
    return {"type": kind, "short_factor": short, "long_factor": [2.0 * each for each in short], **more}


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama-mha-biases": ("llama", {"kv_heads": 4}, {"attention_bias": True, "mlp_bias": True}),
    "llama-mqa-linear-tied": (
        "llama",
        {"kv_heads": 1, "head_dim": 20, "tied": True},
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
    "llama-dynamic-gelu": (
        "llama",
        {},
        {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "hidden_act": "gelu", "mlp_bias": True},
    ),
    "llama-llama3-bias": ("llama", {"head_dim": 32}, {"rope_scaling": LLAMA3, "attention_bias": True}),
    "llama-yarn-relu": ("llama", {"heads": 6, "kv_heads": 3}, {"rope_scaling": YARN, "hidden_act": "relu"}),
    "llama-yarn-scales": (
        "llama",
        {"head_dim": 24},
        {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8, "truncate": False, "beta_fast": 16}},
    ),
    "llama-longrope": (
        "llama",
        {},
        {"rope_scaling": _longrope("longrope", 6, factor=8.0, original_max_position_embeddings=256)},
    ),
    "mistral-window": ("mistral", {"kv_heads": 1}, {"sliding_window": 40}),
    "mistral-narrow-yarn-tied": ("mistral", {"tied": True}, {"sliding_window": 7, "rope_scaling": YARN}),
    "qwen2-window-from-a-layer": (
        "qwen2",
        {"tied": True, "kv_heads": 1},
        {"use_sliding_window": True, "sliding_window": 30, "max_window_layers": 1},
    ),
    "qwen2-layer-types-yarn": (
        "qwen2",
        {"kv_heads": 4},
        {
            "use_sliding_window": True,
            "sliding_window": 90,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "rope_scaling": YARN,
        },
    ),
    "qwen3": ("qwen3", {"head_dim": 20}, {}),
    "qwen3-bias-window-linear": (
        "qwen3",
        {"tied": True, "kv_heads": 4},
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 50,
            "max_window_layers": 2,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e4},
        },
    ),
    "phi3-window": ("phi3", {"kv_heads": 4}, {"sliding_window": 33}),
    "phi3-partial-longrope": (
        "phi3",
        {"head_dim": 16, "hidden": 64},
        {
            "partial_rotary_factor": 0.5,
            "rope_scaling": _longrope("longrope", 4),
            "original_max_position_embeddings": 256,
        },
    ),
    "phi3-odd-rotary": ("phi3", {"head_dim": 20, "tied": True}, {"partial_rotary_factor": 0.75}),
    "gemma2": ("gemma2", {"tied": True}, {"sliding_window": 20, "query_pre_attn_scalar": 7}),
    "gemma2-mqa-no-caps-bias": (
        "gemma2",
        {"kv_heads": 1, "head_dim": 32},
        {
            "sliding_window": 64,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
            "layer_types": ["sliding_attention"] * 4,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        },
    ),
    "gemma2-low-caps": (
        "gemma2",
        {"kv_heads": 4},
        {"sliding_window": 128, "attn_logit_softcapping": 0.7, "final_logit_softcapping": 2.0},
    ),
    "gemma3": (
        "gemma3_text",
        {"tied": True},
        {"sliding_window": 20, "sliding_window_pattern": 2, "rope_theta": 1e6, "rope_local_base_freq": 1e3},
    ),
    "gemma3-linear-bias-cap": (
        "gemma3_text",
        {"kv_heads": 1, "head_dim": 20},
        {
            "sliding_window": 70,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "attention_bias": True,
            "final_logit_softcapping": 3.0,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "mixtral-window": ("mixtral", {}, {"sliding_window": 25}),
    "mixtral-top1-yarn": (
        "mixtral",
        {"kv_heads": 4, "tied": True},
        {"num_local_experts": 8, "num_experts_per_tok": 1, "rope_scaling": YARN},
    ),
    "qwen3-moe-some-plain": (
        "qwen3_moe",
        {"intermediate": 40},
        {"norm_topk_prob": True, "mlp_only_layers": [1], "num_experts": 6, "num_experts_per_tok": 3},
    ),
    "qwen3-moe-as-they-are-window-bias": (
        "qwen3_moe",
        {"kv_heads": 1, "tied": True},
        {
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 45,
        },
    ),
}
